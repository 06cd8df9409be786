"""Operations that Core AI has no translation for, computed by others that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from .captures.interpolated.graphs import (
    CUBIC,
    LINEAR,
    MATRICES,
    SMOOTH,
    Choice,
    always,
    axes_of,
    interpolated,
)
from .captures.interpolated.places import affine_grid, grids, sampled
from .captures.rewrites import (
    RARE,
    bucketize,
    clamp,
    distances,
    logaddexp,
    median,
    median_of_all,
    nearest,
    of_all,
    rrelu,
    running,
    vector_norm,
    windows,
)
from .captures.rewriting.einsums import einsum
from .captures.rewriting.scattering import (
    index_add,
    index_copy,
    scatter_add,
    scatter_reduce,
    scatter_value,
)
from .captures.spectra.graphs import as_products
from .captures.tracing import unused_left_out

if TYPE_CHECKING:
    from torch import Tensor

ATEN: Final = torch.ops.aten
LONG: Final = 1024  # elements; sums of fewer along one axis err about as PyTorch's
PART: Final = 32  # elements of a long sum that are added one by one


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


def sort(x: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    """Return the elements in order and where they were; of equal ones the first comes first."""
    size = x.shape[dim] if x.ndim else 1
    if not isinstance(size, int):
        return NotImplemented
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    return torch.topk(x, size, dim, descending)  # Core AI's gives the first of equal ones first


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the diagonal of two axes, as the last one."""
    sizes: list[Any] = [x.shape[dim1], x.shape[dim2]]
    if not all(isinstance(it, int) for it in sizes):
        return NotImplemented
    rows, columns = sizes
    down, right = max(-offset, 0), max(offset, 0)
    count = max(min(rows - down, columns - right), 0)
    rest = [it for it in range(x.ndim) if it not in (dim1 % x.ndim, dim2 % x.ndim)]
    flat = x.permute(*rest, dim1 % x.ndim, dim2 % x.ndim).flatten(-2)
    along = torch.arange(count, device=x.device)
    places = (along + down) * columns + along + right
    return flat.index_select(-1, places)


def max_pool3d(
    x: Tensor,
    size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | None = None,
    dilation: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the largest elements of windows of three axes: of the last two, and of these along the first."""
    pads, apart = padding or [0], dilation or [1]
    size, stride, pads, apart = (
        [*it] * (3 // len(it)) for it in (size, stride or size, pads, apart)
    )
    whole = x if x.ndim == 5 else x.unsqueeze(0)
    batch, channels, depth, height, width = whole.shape
    flat = whole.reshape(batch, channels * depth, height, width)
    flat = torch.max_pool2d(flat, size[1:], stride[1:], pads[1:], apart[1:], ceil_mode)
    high, wide = flat.shape[2:]
    deep = flat.reshape(batch, channels, depth, high * wide)
    along = ([it[0], rest] for it, rest in ((size, 1), (stride, 1), (pads, 0), (apart, 1)))
    first, step, pad, between = along
    deep = torch.max_pool2d(deep, first, step, pad, between, ceil_mode)
    found = deep.reshape(batch, channels, deep.shape[2], high, wide)
    return found if x.ndim == 5 else found.squeeze(0)


def axis_by_axis(total: Any) -> Callable[..., Any]:
    """Return a rewrite of TOTAL, a sum or a mean, over several axes as one over each in turn, over a long one in parts.

    Core AI (1.0.0b3) adds up all numbers of a sum one by one: its error grows with their number (Higham 2002,
    Accuracy and Stability of Numerical Algorithms, equation 4.4).
    """

    def rewrite(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        axes = sorted(axis % x.ndim for axis in dim or range(x.ndim))
        long = any(isinstance(x.shape[it], int) and x.shape[it] > LONG for it in axes)
        if not x.is_floating_point() or not (len(axes) > 1 or long):
            return NotImplemented
        for axis in reversed(axes):
            parts, size = parted(x, axis), x.shape[axis]
            if parts is x:
                x = total(x, [axis], keepdim, dtype=dtype)
            else:
                x = ATEN.sum.dim_IntList(parts, [axis], keepdim, dtype=dtype)
                x = x / size if total is ATEN.mean.dim else x
        return x

    return rewrite


def parted(x: Tensor, axis: int) -> Tensor:
    """Return X, a long AXIS summed up in parts of a few elements, these again, until few are left."""
    size: Any = x.shape[axis]
    if not isinstance(size, int) or size <= LONG:
        return x
    while size > PART:
        size = -(-size // PART)
        ends = [0, 0] * (x.ndim - 1 - axis) + [0, PART * size - x.shape[axis]]
        x = torch.constant_pad_nd(x, ends) if ends[-1] else x
        x = x.reshape(*x.shape[:axis], size, PART, *x.shape[axis + 1 :]).sum(axis + 1)
    return x


def rewritten(program: Any, table: Callable[[], Mapping[Any, Any]]) -> Any:
    """Return PROGRAM, an ``ExportedProgram``, decomposed by Core AI's TABLE and by ours, all at once.

    Each decomposition traces the whole program again, most of the time of an export.
    """
    tables = (
        EARLY,
        dict(table()),
        REWRITES,
    )  # torch makes all of its table when it is asked for any
    targets = {it for each in tables for it in each}
    with unused_left_out():
        return program.run_decompositions(
            {it: first_of([each[it] for each in tables if it in each]) for it in targets}
        )


def first_of(rewrites: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return what tries REWRITES in turn, up to one that applies."""

    def rewrite(*given: Any, **options: Any) -> Any:
        results = (it(*given, **options) for it in rewrites)
        return next((it for it in results if it is not NotImplemented), NotImplemented)

    return rewrite if len(rewrites) > 1 else rewrites[0]


def interpolated_by(graph: Any) -> list[Any]:
    """Return the constants of interpolations in GRAPH, as arithmetic, those that Core AI lacks made products in place."""
    as_products(interpolated(graph, INTERPOLATED, "Core AI"), "Core AI")
    return [*graph.graph_module.meta[MATRICES], *stretched(graph), *grids(graph)]


def stretched(graph: Any) -> Iterator[list[Any]]:
    """Yield what Core AI is told of how far interpolations in GRAPH stretch each axis, and move it, as arithmetic."""
    for node in graph.graph.nodes:
        if node.target not in NATIVE:
            continue
        axes = axes_of(node)
        factors = [it.factor or it.after / it.before for it in axes]
        if any(it.aligned for it in axes):
            factors = [(it.after - 1) / max(it.before - 1, 1) for it in axes]
            yield ["join", 0.0, 0.0, 0.0, *(0.5 * (1 - it) for it in factors)]
        yield ["join", 0.0, 1.0, 1.0, *(factors or node.args[-1] or ())]


# Interpolations that Core AI lacks, or computes from places that it makes ahead of time; and those that it has.
# By one element of the first and the last its runtime (1.0.0b3) divides by zero, which ends its process.
INTERPOLATED: Final[Mapping[Any, Choice]] = {
    **dict.fromkeys((*SMOOTH, CUBIC, LINEAR[0], LINEAR[2]), always),
    LINEAR[1]: lambda axes: any(it.aligned and 1 in (it.before, it.after) for it in axes),
}
NATIVE: Final = (LINEAR[1], ATEN.upsample_nearest2d.vec)

SUMS: Final[Mapping[Any, Callable[..., Any]]] = {
    **dict.fromkeys((ATEN.mean.default, ATEN.mean.dim), axis_by_axis(ATEN.mean.dim)),
    **dict.fromkeys((ATEN.sum.default, ATEN.sum.dim_IntList), axis_by_axis(ATEN.sum.dim_IntList)),
}

# What Core AI's own table makes something else of first, which says less.
EARLY: Final[Mapping[Any, Callable[..., Any]]] = {
    ATEN.affine_grid_generator.default: affine_grid,
    **dict.fromkeys((ATEN.grid_sampler.default, ATEN.grid_sampler_2d.default), sampled),
    ATEN.einsum.default: einsum,
    ATEN.index_add.default: index_add,
    ATEN.index_copy.default: index_copy,
    ATEN.linalg_vector_norm.default: vector_norm,
    ATEN.logaddexp.default: logaddexp,
    ATEN.logcumsumexp.default: running(logaddexp),
    ATEN.max_pool3d.default: max_pool3d,
    ATEN.rrelu.default: rrelu,
    ATEN.upsample_nearest2d.vec: nearest,
    **SUMS,
}

REWRITES: Final[Mapping[Any, Callable[..., Any]]] = {
    **RARE,
    ATEN._cdist_forward.default: distances,
    **{it: of_all(it) for it in (ATEN.amax.default, ATEN.amin.default)},
    ATEN.argmin.default: argmin,
    ATEN.bucketize.Tensor: bucketize,
    ATEN.clamp.default: clamp,
    ATEN.cumprod.default: running(torch.mul),
    ATEN.diagonal.default: diagonal,
    ATEN.elu.default: elu,
    ATEN.erfc.default: lambda x: 1 - torch.erf(x),
    ATEN.hypot.default: lambda x, y: torch.sqrt(x * x + y * y),
    ATEN.isnan.default: lambda x: torch.ne(x, x),
    ATEN.median.default: median_of_all,
    ATEN.median.dim: median,
    ATEN.remainder.Scalar: lambda x, y: torch.remainder(x, torch.full_like(x, y)),
    ATEN.scatter_add.default: scatter_add,
    ATEN.scatter_reduce.two: scatter_reduce,
    ATEN.scatter.value: scatter_value,  # whose writer (1.0.0b3) ends the process
    ATEN.sort.default: sort,
    ATEN.sort.stable: sort,
    ATEN.unfold.default: windows,
    ATEN.var.correction: var,
    ATEN.var_mean.correction: var_mean,
}
