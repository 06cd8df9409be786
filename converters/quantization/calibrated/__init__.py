"""Codes for the inputs that a weight gets: what they err in the output, made small (GPTQ)."""

from __future__ import annotations

from .encoding import encode

__all__ = ["encode"]
