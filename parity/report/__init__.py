"""What a verdict looks like to a person."""

from __future__ import annotations

from .terminal import render

__all__ = ["render"]
