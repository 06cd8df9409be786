"""Captures: a computation recorded from one framework, runnable and differentiable in another."""

from __future__ import annotations

from .directions import capture, census
from .specs import AdapterSpec

__all__ = ["AdapterSpec", "capture", "census"]
