"""Configs both ways: what transformers writes, and what the classes of the MLX libraries read."""

from __future__ import annotations

from .to_mlx import to_mlx
from .to_torch import to_torch
from .translation import Translation

__all__ = ["Translation", "to_mlx", "to_torch"]
