"""How many elements lie where."""

from __future__ import annotations

import mlx.core as mx

from ...dtypes import is_float
from ..registry import operation


@operation("histc")
def _histc(self: mx.array, bins: int = 100, min_: float = 0, max_: float = 0) -> mx.array:
    """Count in BINS of equal width from MIN to MAX, which counts too; equal ones mean the data's own."""
    x = mx.stop_gradient(self.reshape(-1))
    x = x if is_float(x) else x.astype(mx.float32)
    low, high = mx.array(min_, x.dtype), mx.array(max_, x.dtype)
    if min_ == max_ and x.size:
        low, high = mx.min(x), mx.max(x)
        same = low == high
        low, high = mx.where(same, low - 1, low), mx.where(same, high + 1, high)
    inside = mx.logical_and(x >= low, x <= high)
    place = mx.floor((x - low) * (bins / (high - low)))
    place = mx.clip(mx.where(inside, place, 0), 0, bins - 1).astype(mx.int32)
    return mx.zeros(bins, x.dtype).at[place].add(inside.astype(x.dtype))


@operation("nonzero_static")
def _nonzero_static(self: mx.array, size: int, fill_value: int = -1) -> mx.array:
    """Return the indices of the first SIZE elements that are not zero, and FILL_VALUE behind them."""
    found = (self != 0).reshape(-1)
    order = mx.argsort(mx.logical_not(found).astype(mx.int32))[:size]
    order = mx.pad(order.astype(mx.int64), (0, max(size - order.size, 0)))
    columns, rest = [], order
    for length in reversed(self.shape):
        columns.append(rest % length)
        rest = rest // length
    places = mx.stack(columns[::-1], axis=-1) if columns else mx.zeros((size, 0), mx.int64)
    there = mx.arange(size)[:, None] < mx.sum(found)
    return mx.where(there, places, mx.array(fill_value, mx.int64))
