"""Rows of a table, looked up and reduced in bags."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from ..registry import operation

SUM, MEAN, MAX = 0, 1, 2  # torch's numbers


def _bags(count: int, offsets: mx.array, include_last_offset: bool) -> tuple[mx.array, int]:
    """Return the bag of each of COUNT indices, and how many bags there are."""
    bags = offsets.size - include_last_offset
    return mx.sum(mx.arange(count)[:, None] >= offsets, axis=-1) - 1, bags


def _largest(rows: mx.array, within: mx.array) -> mx.array:
    """Return the largest of each bag's ROWS, shape ``(indices, features)``; 0 for an empty bag."""
    inside = mx.where(within[..., None], rows, mx.array(-float("inf"), rows.dtype))
    if not rows.shape[0]:
        return mx.zeros((within.shape[0], rows.shape[1]), rows.dtype)
    first = mx.stop_gradient(mx.argmax(inside, axis=1, keepdims=True))
    best = mx.take_along_axis(mx.broadcast_to(rows, inside.shape), first, axis=1).squeeze(1)
    return mx.where(mx.any(within, axis=1)[:, None], best, mx.zeros_like(best))


@operation("embedding_bag", "_embedding_bag")
def _embedding_bag(  # noqa: PLR0913, PLR0917 - the schema's
    weight: mx.array,
    indices: mx.array,
    offsets: mx.array,
    scale_grad_by_freq: Literal[False] = False,  # noqa: ARG001 - the census refuses True
    mode: int = SUM,
    sparse: bool = False,  # noqa: ARG001 - how torch stores the gradient
    per_sample_weights: mx.array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Reduce the rows of each bag; OFFSETS say where bags begin.

    Row PADDING_IDX counts for nothing, if it is not negative.
    """
    bag, count = _bags(indices.size, offsets, include_last_offset)
    rows = weight[indices]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    counted = indices != padding_idx if padding_idx >= 0 else mx.ones(indices.shape, mx.bool_)
    within = mx.logical_and(bag == mx.arange(count)[:, None], counted)
    if mode == MAX:
        made = _largest(rows, within)
    else:
        made = within.astype(rows.dtype) @ rows
        if mode == MEAN:
            made = made / mx.maximum(mx.sum(within, axis=1, keepdims=True), 1).astype(rows.dtype)
    return made, bag, mx.sum(within, axis=1), mx.zeros(count, mx.int64)


@operation("embedding_bag.padding_idx")
def _with_padding(  # noqa: PLR0913, PLR0917 - the schema's
    weight: mx.array,
    indices: mx.array,
    offsets: mx.array,
    scale_grad_by_freq: Literal[False] = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: mx.array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Do the same, row PADDING_IDX counted from the last one if it is negative."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    given = (weight, indices, offsets, scale_grad_by_freq, mode, sparse)
    return _embedding_bag(*given, per_sample_weights, include_last_offset, padding)
