"""Order: sort, topk, search."""

from __future__ import annotations

import mlx.core as mx

from ..axes import at, axis_of
from ..registry import operation, register


def _argsort(x: mx.array, axis: int, descending: bool) -> mx.array:
    """Sort stably; descending order keeps equal elements in their order, too."""
    if not descending:
        return mx.stop_gradient(mx.argsort(x, axis=axis)).astype(mx.int64)
    backwards = at(x, axis, slice(None, None, -1))
    order = mx.argsort(x[backwards], axis=axis)[backwards].astype(mx.int64)
    return mx.stop_gradient(x.shape[axis] - 1 - order)


def _sort(
    self: mx.array,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = None,  # noqa: ARG001 - it always is
) -> tuple[mx.array, mx.array]:
    if not self.ndim:
        return self, mx.array(0, mx.int64)
    axis = axis_of(self, dim)
    order = _argsort(self, axis, descending)
    return mx.take_along_axis(self, order, axis=axis), order


@operation("topk")
def _topk(
    self: mx.array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted_: bool = True,  # noqa: ARG001 - sorted is one of the orders it may have
) -> tuple[mx.array, ...]:
    values, order = _sort(self, dim, descending=largest)
    if not self.ndim:
        return values, order
    first = at(self, dim, slice(k))
    return values[first], order[first]


def _places(ordered: mx.array, sought: mx.array, right: bool) -> mx.array:
    """Count along the last axis of ORDERED what stands before SOUGHT; nan stands behind everything."""
    behind = ordered > sought[..., None] if right else ordered >= sought[..., None]
    return mx.sum(mx.logical_not(behind), axis=-1)


@operation("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    sorted_sequence: mx.array,
    self: mx.array | float,
    right: bool = False,
    side: str | None = None,
    sorter: mx.array | None = None,
) -> mx.array:
    if sorter is not None:
        sorted_sequence = mx.take_along_axis(sorted_sequence, sorter, axis=-1)
    rows = sorted_sequence if sorted_sequence.ndim == 1 else sorted_sequence[..., None, :]
    return _places(rows, mx.array(self), right or side == "right")


@operation("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(self: mx.array | float, boundaries: mx.array, right: bool = False) -> mx.array:
    return _places(boundaries, mx.array(self), right)


register(
    {
        "sort sort.stable": _sort,
        "argsort argsort.stable": lambda self, **order: _sort(self, **order)[1],
        "msort": lambda self: _sort(self, 0)[0],
    }
)
