"""Learn the map of a class from its own ``sanitize``: traced, brought into rules, printed, proved."""

from __future__ import annotations

from .learning import Learned, trace
from .process import LIMITS, Limits, learn, warm

__all__ = ["LIMITS", "Learned", "Limits", "learn", "trace", "warm"]
