"""Operations that Core AI has no translation for, computed by others that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

ATEN: Final = torch.ops.aten


def var(
    x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Return the variance: squares about the mean, over their number less CORRECTION."""
    axes = [*range(x.ndim)] if not dim else [axis % x.ndim for axis in dim]
    count = 1
    for axis in axes:
        count = count * x.shape[axis]
    squares = torch.square(x - x.mean(axes, keepdim=True))
    return squares.sum(axes, keepdim=keepdim) / (count - (1 if correction is None else correction))


def var_mean(x: Tensor, dim: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean."""
    axes = dim if dim else [*range(x.ndim)]
    return var(x, dim, **options), x.mean(axes, keepdim=options.get("keepdim", False))


def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Return X above 0, and its exponential less 1 below, as ELU and SELU scale them."""
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def argmin(x: Tensor, *given: Any) -> Tensor:
    """Return where the smallest element is."""
    return torch.argmax(-x, *given)


def rewritten(program: Any, table: Callable[[], Mapping[Any, Any]]) -> Any:
    """Return PROGRAM, an ``ExportedProgram``, decomposed by Core AI's TABLE, and by ours what that leaves."""
    core = program.run_decompositions(table())
    if not any(node.target in REWRITES for node in core.graph.nodes):
        return core
    return core.run_decompositions(dict(REWRITES)).run_decompositions(table())


REWRITES: Final[Mapping[Any, Callable[..., Any]]] = {
    ATEN.argmin.default: argmin,
    ATEN.elu.default: elu,
    ATEN.erfc.default: lambda x: 1 - torch.erf(x),
    ATEN.hypot.default: lambda x, y: torch.sqrt(x * x + y * y),
    ATEN.isnan.default: lambda x: torch.ne(x, x),
    ATEN.remainder.Scalar: lambda x, y: torch.remainder(x, torch.full_like(x, y)),
    ATEN.var.correction: var,
    ATEN.var_mean.correction: var_mean,
}
