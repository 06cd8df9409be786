"""Averages over windows of the last axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..axes import at, repeated
from ..registry import register

Sizes = int | Sequence[int]


def window_count(length: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Return how many windows fit (torch: a window may not start in the padding after)."""
    room = length + 2 * padding - kernel
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


def _windows(x: mx.array, axis: int, kernel: int, stride: int, count: int) -> mx.array:
    """Return COUNT windows of axis AXIS: it becomes ``(count, kernel)``."""
    if stride == kernel:  # windows side by side are a reshape
        whole = x[at(x, axis, slice(count * kernel))]
        return whole.reshape(*x.shape[:axis], count, kernel, *x.shape[axis + 1 :])
    places = np.arange(count)[:, None] * stride + np.arange(kernel)
    return mx.take(x, mx.array(places), axis=axis)


def padded_axis(x: mx.array, axis: int, before: int, needed: int, value: float) -> mx.array:
    """Pad axis AXIS with VALUE: BEFORE in front, and behind up to NEEDED in all."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, max(needed - x.shape[axis] - before, 0))
    return mx.pad(x, widths, constant_values=mx.array(value, x.dtype))


def _divisors(
    length: int, count: int, window: tuple[int, int, int], count_include_pad: bool
) -> NDArray[np.float32]:
    """Return how many elements each average runs over."""
    kernel, stride, padding = window
    starts = np.arange(count) * stride - padding
    ends = np.minimum(starts + kernel, length + padding)
    if not count_include_pad:
        starts, ends = np.maximum(starts, 0), np.minimum(ends, length)
    return (ends - starts).astype(np.float32)


def _ones(_length: int, count: int, _window: tuple[int, int, int]) -> NDArray[np.float32]:
    return np.ones(count, np.float32)


_Divisors = Callable[[int, int, tuple[int, int, int]], NDArray[np.float32]]


def _avg_along(
    x: mx.array, axis: int, window: tuple[int, int, int], ceil_mode: bool, divisors: _Divisors
) -> mx.array:
    kernel, stride, padding = window
    count = window_count(x.shape[axis], kernel, stride, padding, ceil_mode)
    padded = padded_axis(x, axis, padding, (count - 1) * stride + kernel, 0)
    total = mx.sum(_windows(padded, axis, kernel, stride, count), axis=axis + 1)
    each = mx.array(divisors(x.shape[axis], count, window)).astype(x.dtype)
    return total / each.reshape([-1] + [1] * (x.ndim - 1 - axis))


def _avg_pool(axes: int) -> Callable[..., mx.array]:
    def pool(  # noqa: PLR0913, PLR0917 - the schema's
        self: mx.array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> mx.array:
        sizes = [repeated(s, axes) for s in (kernel_size, stride or kernel_size, padding)]
        divisors: _Divisors = partial(_divisors, count_include_pad=count_include_pad)
        if divisor_override is not None:
            divisors = _ones
        for axis, window in enumerate(zip(*sizes, strict=True), self.ndim - axes):
            self = _avg_along(self, axis, window, ceil_mode, divisors)
        return self if divisor_override is None else self / divisor_override

    return pool


def _adaptive(x: mx.array, axis: int, count: int) -> mx.array:
    """Average axis AXIS to COUNT stretches from floor(i L / n) to ceil((i + 1) L / n)."""
    length = x.shape[axis]
    if length % count == 0:
        split = x.reshape(*x.shape[:axis], count, length // count, *x.shape[axis + 1 :])
        return mx.mean(split, axis=axis + 1)
    bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
    return mx.concatenate(
        [mx.mean(x[at(x, axis, slice(*b))], axis=axis, keepdims=True) for b in bounds], axis=axis
    )


def _adaptive_pool(axes: int) -> Callable[..., mx.array]:
    def pool(self: mx.array, output_size: Sizes) -> mx.array:
        for axis, count in enumerate(repeated(output_size, axes), self.ndim - axes):
            self = _adaptive(self, axis, count)
        return self

    return pool


for _n in (1, 2, 3):
    register({f"avg_pool{_n}d": _avg_pool(_n), f"adaptive_avg_pool{_n}d": _adaptive_pool(_n)})
register({f"_adaptive_avg_pool{n}d": _adaptive_pool(n) for n in (2, 3)})
