"""Views: reshape, permute, expand, slice, and what torch inserts for aliasing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from ..axes import at, axes_of, axis_of
from ..registry import made_by, operation, register


def _same(x: mx.array) -> mx.array:
    """Return the operand: MLX arrays are values, and the result's dtype is seen to elsewhere."""
    return x


register(
    {
        "alias alias_copy clone lift lift_fresh lift_fresh_copy _to_copy": _same,
        "detach": mx.stop_gradient,
        "t t_copy": mx.transpose,
        "squeeze": mx.squeeze,
    },
    arity=1,
)
register(
    {
        "type_as": lambda x, _: x,
        "view _unsafe_view view_copy": mx.reshape,
        "unsqueeze unsqueeze_copy": mx.expand_dims,
    },
    arity=2,
)


def _permuting(dims: Sequence[int]) -> Callable[[mx.array], mx.array]:
    axes = [dim % len(dims) for dim in dims]

    def permute(self: mx.array) -> mx.array:
        return self.transpose(axes)

    return permute


@operation("permute", "permute_copy")
@made_by(_permuting)
def _permute(self: mx.array, dims: Sequence[int]) -> mx.array:
    return _permuting(dims)(self)


register(
    {
        "transpose.int": lambda x, a, b: mx.swapaxes(x, a, b) if x.ndim else x,
    },
    arity=3,
)
register(
    {
        "diagonal diagonal_copy": lambda self, offset=0, dim1=0, dim2=1: mx.diagonal(
            self, offset, dim1, dim2
        ),
        # of what is contiguous: the census refuses the rest
        "as_strided": lambda self, size, stride, storage_offset=0: mx.as_strided(
            self, size, stride, storage_offset or 0
        ),
        "diag": lambda self, diagonal=0: mx.diag(self, diagonal),
        "tril": lambda self, diagonal=0: mx.tril(self, diagonal),
        "triu": lambda self, diagonal=0: mx.triu(self, diagonal),
    }
)


@operation("expand", "expand_copy")
def _expand(self: mx.array, size: Sequence[int]) -> mx.array:
    """Broadcast; -1 keeps a size."""
    added = len(size) - self.ndim
    sizes = [self.shape[i - added] if size_ == -1 else size_ for i, size_ in enumerate(size)]
    return mx.broadcast_to(self, sizes)


@operation("squeeze.dim", "squeeze.dims")
def _squeeze(self: mx.array, dim: int | Sequence[int]) -> mx.array:
    dims = [dim] if isinstance(dim, int) else dim
    axes = axes_of(self, dims) if dims else []
    return self.squeeze([axis for axis in axes if self.shape[axis] == 1])


def movedim(self: mx.array, source: Sequence[int], destination: Sequence[int]) -> mx.array:
    """Move axes SOURCE to DESTINATION; the others keep their order."""
    moved = dict(zip(axes_of(self, destination), axes_of(self, source), strict=True))
    rest = iter(sorted(set(range(self.ndim)) - set(moved.values())))
    return self.transpose([moved[i] if i in moved else next(rest) for i in range(self.ndim)])


def _bounded(index: int | None, size: int, default: int) -> int:
    """Return where a slice begins or ends: torch clamps what lies outside."""
    if index is None:
        return default
    return min(max(index + size if index < 0 else index, 0), size)


def interval(x: mx.array, dim: int, start: int | None, end: int | None, step: int = 1) -> slice:
    """Return torch's slice of axis DIM as a Python slice inside the array."""
    size = x.shape[axis_of(x, dim)]
    first = _bounded(start, size, 0)
    return slice(first, max(first, _bounded(end, size, size)), step)


@operation("slice.Tensor", "slice_copy.Tensor")
def _slice(
    self: mx.array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> mx.array:
    return self[at(self, dim, interval(self, dim, start, end, step))]


@operation("select.int", "select_copy.int")
def _select(self: mx.array, dim: int, index: int) -> mx.array:
    return self[at(self, dim, index)]


@operation("unfold")
def _unfold(self: mx.array, dimension: int, size: int, step: int) -> mx.array:
    """Give windows of SIZE every STEP along an axis, as a new last axis."""
    if not self.ndim:
        return self.reshape(1)[:size]
    axis = axis_of(self, dimension)
    starts = mx.arange(0, self.shape[axis] - size + 1, step)
    windows = mx.take(self, starts[:, None] + mx.arange(size), axis=axis)
    return mx.moveaxis(windows, axis + 1, -1)
