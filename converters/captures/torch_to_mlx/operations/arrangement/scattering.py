"""Writing by indices: every result is a new array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..axes import at, axis_of
from ..gradients import where
from ..registry import operation
from .indexing import Indices, adjacent, moved_to_front
from .shapes import interval, movedim


def _written(x: mx.array, key: Any, values: mx.array) -> mx.array:
    copy = mx.array(x)
    copy[key] = values.astype(x.dtype)
    return copy


@operation("slice_scatter")
def _slice_scatter(
    self: mx.array,
    src: mx.array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> mx.array:
    return _written(self, at(self, dim, interval(self, dim, start, end, step)), src)


@operation("select_scatter")
def _select_scatter(self: mx.array, src: mx.array, dim: int, index: int) -> mx.array:
    return _written(self, at(self, dim, index), src)


@operation("diagonal_scatter")
def _diagonal_scatter(
    self: mx.array, src: mx.array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> mx.array:
    front = movedim(self, (dim1, dim2), (0, 1))
    steps = mx.arange(src.shape[-1])
    key = (steps + max(-offset, 0), steps + max(offset, 0))
    written = _written(front, key, mx.moveaxis(src, -1, 0))
    return movedim(written, (0, 1), (dim1, dim2))


@operation("index_put", "_unsafe_index_put")
def _index_put(
    self: mx.array, indices: Indices, values: mx.array, accumulate: bool = False
) -> mx.array:
    """Write VALUES where INDICES point; a boolean index writes one value wherever it is true."""
    if any(index is not None and index.dtype == mx.bool_ for index in indices):
        return _masked_put(self, indices, values, accumulate)
    indexed, order = moved_to_front(self.ndim, indices)
    key = tuple(index for index in indices if index is not None)
    if indexed[0] and adjacent(indexed) and values.ndim:
        values = _front(self, indexed, key, values)
    front = self.transpose(order)
    put = (
        front.at[key].add(values.astype(self.dtype)) if accumulate else _written(front, key, values)
    )
    return put.transpose(sorted(range(self.ndim), key=order.__getitem__))


def _front(
    x: mx.array, indexed: list[int], key: tuple[mx.array, ...], values: mx.array
) -> mx.array:
    """Move the indexed part of VALUES, which lies in the axes' place, to the front."""
    part = mx.broadcast_shapes(*[index.shape for index in key])
    first, last = indexed[0], indexed[-1]
    whole = mx.broadcast_to(values, [*x.shape[:first], *part, *x.shape[last + 1 :]])
    place = list(range(first, first + len(part)))
    return whole.transpose(place + [axis for axis in range(whole.ndim) if axis not in place])


def _masked_put(x: mx.array, indices: Indices, values: mx.array, accumulate: bool) -> mx.array:
    """Write where a mask is true: one value everywhere, or one after the other."""
    (mask,) = [index for index in indices if index is not None]
    first = next(axis for axis, index in enumerate(indices) if index is not None)
    axes, front = range(first, first + mask.ndim), range(mask.ndim)
    values = _chosen_first(values.astype(x.dtype), first, x.ndim - first - mask.ndim)
    put = _put_rows(movedim(x, axes, front), mask, values, accumulate)
    return movedim(put, front, axes)


def _chosen_first(values: mx.array, before: int, behind: int) -> mx.array:
    """Move the axis of what a mask chose, which has BEFORE and BEHIND axes beside it, to the front."""
    place = values.ndim - 1 - behind
    if place < 0:
        return values
    moved = mx.moveaxis(values, place, 0)
    return moved.reshape(moved.shape[0], *[1] * (before - place), *moved.shape[1:])


def _put_rows(x: mx.array, mask: mx.array, values: mx.array, accumulate: bool) -> mx.array:
    """Write VALUES to the rows of X, whose first axes MASK has."""
    if values.ndim > x.ndim - mask.ndim and values.shape[0] > 1:
        place = mx.stop_gradient(mx.cumsum(mask.reshape(-1).astype(mx.int32)) - 1)
        rows = mx.take(values, mx.clip(place, 0, values.shape[0] - 1), axis=0)
        values = mx.broadcast_to(rows, (mask.size, *x.shape[mask.ndim :])).reshape(x.shape)
    elif values.ndim > x.ndim - mask.ndim:
        values = values.squeeze(0)
    wide = mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim))
    return mx.where(wide, x + values if accumulate else values, x)


def grid_of(x: mx.array, dim: int, index: mx.array) -> tuple[mx.array, ...]:
    """Return a full index: INDEX along axis DIM, its own coordinates along the others."""
    axis = axis_of(x, dim)
    own = mx.meshgrid(*[mx.arange(size) for size in index.shape], indexing="ij", sparse=True)
    return tuple(index if i == axis else own[i] for i in range(x.ndim))


def region_of(source: mx.array, index: mx.array) -> mx.array:
    """Return the part of SOURCE that INDEX covers."""
    return source[tuple(slice(size) for size in index.shape)]


@operation("put")
def _put(self: mx.array, index: mx.array, source: mx.array, accumulate: bool = False) -> mx.array:
    """Write SOURCE where INDEX points among all elements in order."""
    if not index.size:
        return self
    flat, places, values = (x.reshape(-1) for x in (self, index, source))
    made = flat.at[places].add(values) if accumulate else _written(flat, places, values)
    return made.reshape(self.shape)


@operation("scatter.src")
def _scatter(self: mx.array, dim: int, index: mx.array, src: mx.array) -> mx.array:
    return _written(self, grid_of(self, dim, index), region_of(src, index)) if self.ndim else src


@operation("scatter.value")
def _scatter_value(self: mx.array, dim: int, index: mx.array, value: float) -> mx.array:
    filled = mx.full(index.shape, value, self.dtype)
    return _scatter(self, dim, index, filled)


@operation("scatter_add")
def _scatter_add(self: mx.array, dim: int, index: mx.array, src: mx.array) -> mx.array:
    if not self.ndim:
        return self + src
    return self.at[grid_of(self, dim, index)].add(region_of(src, index))


def _by_rows(
    write: Callable[[mx.array, Any, mx.array], mx.array],
    x: mx.array,
    dim: int,
    index: mx.array,
    rows: mx.array,
) -> mx.array:
    """WRITE rows of axis DIM; an operand without axes counts as one of one element."""
    whole = x if x.ndim else x.reshape(1)
    axis = axis_of(whole, dim)
    index = index.reshape(-1)
    shape = [*whole.shape[:axis], index.size, *whole.shape[axis + 1 :]]
    rows = mx.broadcast_to(rows, shape) if rows.size == 1 else rows.reshape(shape)
    return write(whole, at(whole, axis, index), rows).reshape(x.shape)


@operation("index_add")
def _index_add(
    self: mx.array, dim: int, index: mx.array, source: mx.array, alpha: float = 1
) -> mx.array:
    source = source if alpha == 1 else source * alpha
    return _by_rows(lambda x, key, rows: x.at[key].add(rows), self, dim, index, source)


@operation("index_copy")
def _index_copy(self: mx.array, dim: int, index: mx.array, source: mx.array) -> mx.array:
    return _by_rows(_written, self, dim, index, source)


@operation("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(self: mx.array, dim: int, index: mx.array, value: mx.array | float) -> mx.array:
    """Fill rows of axis DIM; a row that is named twice has one gradient."""
    whole = self if self.ndim else self.reshape(1)
    axis = axis_of(whole, dim)
    rows = mx.zeros(whole.shape[axis], mx.bool_)
    rows = _written(rows, index.reshape(-1), mx.array(True)) if index.size else rows
    chosen = rows.reshape([-1 if i == axis else 1 for i in range(whole.ndim)])
    return where(chosen, mx.array(value, self.dtype), whole).reshape(self.shape)


@operation("masked_scatter")
def _masked_scatter(self: mx.array, mask: mx.array, source: mx.array) -> mx.array:
    """Fill the places where MASK is true from SOURCE, in order."""
    self, mask = mx.broadcast_arrays(self, mask)
    if not source.size:
        return self
    wide = mx.stop_gradient(mask.reshape(-1))
    position = mx.maximum(mx.cumsum(wide.astype(mx.int32)) - 1, 0)
    taken = mx.take(source.reshape(-1), mx.minimum(position, source.size - 1))
    return mx.where(wide, taken, self.reshape(-1)).reshape(self.shape)
