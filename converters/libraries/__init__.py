"""The MLX libraries whose classes read a model type, and what transformers would write for one."""

from __future__ import annotations

from .finding import find, user_target
from .target import Target

__all__ = ["Target", "find", "user_target"]
