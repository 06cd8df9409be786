"""Captures into either framework: which way a module goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from ..models.factories import framework_of

if TYPE_CHECKING:
    from .mlx_to_torch import CapturedMlx
    from .torch_to_mlx import Captured
    from .torch_to_mlx.census import Census


def capture(module: Any, *, to: str = "mlx", inputs: Any, **options: Any) -> Captured | CapturedMlx:
    """Record MODULE of torch or MLX on example INPUTS and return it in the other framework.

    See ``torch_to_mlx.capture_torch`` and ``mlx_to_torch.capture_mlx``.

    Raises:
        UnsupportedError: there is no framework TO, or MODULE is in it.
    """
    if to not in ("mlx", "torch"):
        raise UnsupportedError(f"cannot capture to {to!r}: the targets are 'mlx' and 'torch'")
    if framework_of(module) == to:
        other = "torch" if to == "mlx" else "mlx"
        raise UnsupportedError(f"{type(module).__name__} is in {to} already: say to={other!r}")
    if to == "torch":
        from .mlx_to_torch import capture_mlx

        return capture_mlx(module, inputs=inputs, **options)
    from .torch_to_mlx import capture_torch

    return capture_torch(module, inputs=inputs, **options)


def census(module: Any, *, inputs: Any, dynamic: Any = None) -> Census:
    """Count the operations that a capture of torch MODULE would have, supported or not."""
    from .torch_to_mlx import census_torch

    return census_torch(module, inputs=inputs, dynamic=dynamic)
