"""Captures: a computation recorded from one framework, runnable and differentiable in another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from .specs import AdapterSpec

if TYPE_CHECKING:
    from .torch_to_mlx import Captured
    from .torch_to_mlx.census import Census

__all__ = ["AdapterSpec", "capture", "census"]


def capture(module: Any, *, to: str = "mlx", inputs: Any, **options: Any) -> Captured:
    """Record torch MODULE on example INPUTS and return it in MLX; see ``torch_to_mlx.capture_torch``."""
    if to != "mlx":
        raise UnsupportedError(f"cannot capture to {to!r}; the only target is 'mlx'")
    from .torch_to_mlx import capture_torch

    return capture_torch(module, inputs=inputs, **options)


def census(module: Any, *, inputs: Any, dynamic: Any = None) -> Census:
    """Count the operations that a capture of torch MODULE would have, supported or not."""
    from .torch_to_mlx import census_torch

    return census_torch(module, inputs=inputs, dynamic=dynamic)
