"""Reading by integer indices. Gradients go to the values, never to the indices."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..axes import axis_of
from ..gradients import with_gradient
from ..registry import operation, register

Indices = Sequence[mx.array | None]


@operation("embedding")
def _embedding(
    weight: mx.array,
    indices: mx.array,
    padding_idx: int = -1,
    sparse: bool = False,  # noqa: ARG001 - how torch stores the gradient
) -> mx.array:
    """Look rows up; row PADDING_IDX gets no gradient."""
    rows = weight[indices]
    if padding_idx < 0:
        return rows
    # on the rows looked up, not on the table: there are fewer
    kept: mx.array = _without_gradient(rows, (indices == padding_idx)[..., None])
    return kept


_without_gradient = with_gradient(
    lambda rows, _: rows, lambda g, _, __, where: (mx.where(where, mx.zeros_like(g), g), None)
)


def moved_to_front(ndim: int, indices: Indices) -> tuple[list[int], list[int]]:
    """Return the indexed axes, and an order of all axes that puts those first."""
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    return indexed, indexed + [axis for axis in range(ndim) if axis not in indexed]


def adjacent(axes: Sequence[int]) -> bool:
    """Tell whether AXES are consecutive: then the indexed result stays in their place."""
    return list(axes) == list(range(axes[0], axes[-1] + 1))


@operation("index.Tensor", "_unsafe_index.Tensor")
def _index(self: mx.array, indices: Indices) -> mx.array:
    """Index as numpy does: results of indices that are apart come first."""
    indexed, order = moved_to_front(self.ndim, indices)
    if adjacent(indexed):
        return self[tuple(slice(None) if index is None else index for index in indices)]
    return self.transpose(order)[tuple(indices[axis] for axis in indexed)]


@operation("gather")
def _gather(
    self: mx.array,
    dim: int,
    index: mx.array,
    sparse_grad: bool = False,  # noqa: ARG001 - how torch stores the gradient
) -> mx.array:
    if not self.ndim:
        return mx.broadcast_to(self, index.shape)
    if not index.ndim:
        return mx.take(self, index)
    if not index.size:  # it may have more axes than SELF
        return mx.zeros(index.shape, self.dtype)
    axis = axis_of(self, dim)
    region = [slice(None) if i == axis else slice(size) for i, size in enumerate(index.shape)]
    return mx.take_along_axis(self[tuple(region)], index, axis=axis)


register(
    {
        "index_select": lambda self, dim, index: (
            mx.take(self, index.reshape(-1), axis=axis_of(self, dim)) if self.ndim else self
        ),
        "take": lambda self, index: mx.take(self.reshape(-1), index),
    }
)
