"""Captures: a computation recorded from one framework, runnable and differentiable in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from .specs import AdapterSpec

if TYPE_CHECKING:
    import torch

    from .torch_to_mlx.captured import Captured

__all__ = ["AdapterSpec", "capture"]


def capture(
    module: torch.nn.Module,
    *,
    to: str = "mlx",
    inputs: Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> Captured:
    """Record MODULE on example INPUTS for framework TO (see ``torch_to_mlx.capture_torch``)."""
    if to != "mlx":
        raise UnsupportedError(f"cannot capture to {to!r}; the only target is 'mlx'")
    from .torch_to_mlx.capturing import capture_torch

    return capture_torch(module, inputs=inputs, dynamic=dynamic)
