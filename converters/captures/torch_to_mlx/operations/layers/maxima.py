"""Maxima over windows of the last axes, where they were found, and the way back.

Of equal elements the first counts, in order of memory, and it alone gets the gradient, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial, reduce
from itertools import accumulate, product
from operator import itemgetter
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from ...dtypes import is_float
from ..axes import at, repeated
from ..gradients import with_gradient, zero_where
from ..registry import made_by, register
from .pooling import padded_axis, window_count

Sizes = int | Sequence[int]
OUTSIDE = -(2**48)  # a place in the padding, whatever is added to it
MOST = 16  # windows of more elements are gathered, not compared one after the other


class _Window(NamedTuple):
    """How a window moves along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int


class _Found(NamedTuple):
    """Values, and where each lies among the axes that were reduced, where anybody asks."""

    values: mx.array
    places: mx.array | None


def _lowest(x: mx.array) -> float:
    return -math.inf if is_float(x) else int(mx.iinfo(x.dtype).min)


def _larger(one: _Found, other: _Found) -> _Found:
    """Return the larger element by element: the first of equal ones, and nan above all."""
    if one.places is None or other.places is None:  # at ties MLX's gradient is that of the second
        return _Found(mx.maximum(other.values, one.values), None)
    later = other.values > one.values
    if is_float(one.values):
        later = mx.logical_or(later, mx.isnan(other.values))
    later = mx.logical_or(later, mx.logical_and(one.places < 0, other.places >= 0))
    return _Found(
        mx.where(later, other.values, one.values), mx.where(later, other.places, one.places)
    )


def _each(found: _Found, function: Callable[[mx.array], mx.array]) -> _Found:
    places = found.places
    return _Found(function(found.values), None if places is None else function(places))


def _first_of(windows: _Found, axis: int) -> _Found:
    """Reduce AXIS, the elements of a window."""
    length = windows.values.shape[axis]
    if length <= MOST:
        keys = [at(windows.values, axis, k) for k in range(length)]
        parts = [_each(windows, itemgetter(key)) for key in keys]
        return reduce(_larger, parts)
    top = mx.stop_gradient(mx.argmax(windows.values, axis=axis, keepdims=True))
    return _each(windows, lambda x: mx.take_along_axis(x, top, axis).squeeze(axis))


def _along(found: _Found, axis: int, elements: mx.array, weight: int) -> _Found:
    """Reduce the windows of AXIS whose elements are given, shape ``(count, kernel)``; -1 is nothing.

    WEIGHT is how far apart two neighbours of this axis lie among the axes reduced so far.
    """
    length = found.values.shape[axis]
    values = padded_axis(found.values, axis, 0, length + 1, _lowest(found.values))
    inside = mx.where(elements < 0, length, elements)
    windows = mx.take(values, inside, axis=axis)
    if found.places is None:
        return _first_of(_Found(windows, None), axis + 1)
    places = padded_axis(found.places, axis, 0, length + 1, 0)
    added = mx.where(elements < 0, OUTSIDE, elements * weight)
    added = added.reshape(*elements.shape, *[1] * (found.values.ndim - 1 - axis))
    places = mx.take(places, inside, axis=axis) + added
    return _first_of(_Found(windows, places), axis + 1)


def _sliding(x: mx.array, axis: int, window: _Window, ceil_mode: bool) -> mx.array:
    """Return which elements each window of AXIS holds; -1 in the padding."""
    kernel, stride, padding, dilation = window
    span = dilation * (kernel - 1) + 1
    count = window_count(x.shape[axis], span, stride, padding, ceil_mode)
    places = np.arange(count)[:, None] * stride - padding + np.arange(kernel) * dilation
    return mx.array(np.where((places < 0) | (places >= x.shape[axis]), -1, places))


def _max_along(x: mx.array, axis: int, window: _Window, ceil_mode: bool) -> mx.array:
    """Reduce AXIS; windows are shifted slices, which cost less than what ``_along`` gathers."""
    kernel, stride, padding, dilation = window
    span = dilation * (kernel - 1) + 1
    count = window_count(x.shape[axis], span, stride, padding, ceil_mode)
    if kernel > MOST:
        return _along(_Found(x, None), axis, _sliding(x, axis, window, ceil_mode), 1).values
    padded = padded_axis(x, axis, padding, (count - 1) * stride + span, _lowest(x))
    parts = [
        _Found(padded[at(x, axis, slice(k, k + (count - 1) * stride + 1, stride))], None)
        for k in range(0, kernel * dilation, dilation)
    ]
    return reduce(_larger, parts).values


@lru_cache(maxsize=1024)  # found again in each call, it would take longer than MLX's graph does
def _side_by_side(sizes: tuple[int, ...], windows: tuple[_Window, ...]) -> bool:
    """Tell whether every element of axes of SIZES is in one window at most, of few elements, and none beyond them."""
    axes = zip(sizes, windows, strict=True)
    whole = (w.stride == w.kernel <= n and not w.padding and w.dilation == 1 for n, w in axes)
    return all(whole) and 1 < math.prod(w.kernel for w in windows) <= MOST


def _tiles(x: mx.array, first: int, kernels: Sequence[int]) -> mx.array:
    """Split axes of X, from FIRST on, into windows and their elements; what is left over is cut off."""
    kept, split = _tiling(x.shape, first, kernels)
    return (x[kept] if kept else x).reshape(split)


@lru_cache(maxsize=1024)
def _tiling(
    shape: tuple[int, ...], first: int, kernels: Sequence[int]
) -> tuple[tuple[slice, ...] | None, tuple[int, ...]]:
    """Return which elements of an array of SHAPE are in windows, ``None`` for all, and the shape with these split."""
    last = first + len(kernels)
    counts = [n // kernel for n, kernel in zip(shape[first:], kernels, strict=False)]
    sizes = [n * kernel for n, kernel in zip(counts, kernels, strict=True)]
    cut = None if [*shape[first:last]] == sizes else tuple(map(slice, (*shape[:first], *sizes)))
    pairs = [size for pair in zip(counts, kernels, strict=True) for size in pair]
    return cut, (*shape[:first], *pairs, *shape[last:])


@cache
def _tops(first: int, kernels: tuple[int, ...]) -> Any:
    """Return what gives the largest element of each window, of its KERNELS along the axes from FIRST on."""
    about: dict[str, Any] = {"first": first, "kernels": kernels}
    return with_gradient(partial(_max_of_tiles, **about), partial(_tiles_gradient, **about))


def _max_of_tiles(x: mx.array, first: int, kernels: Sequence[int]) -> mx.array:
    tiles = _tiles(x, first, kernels)
    for axis, kernel in enumerate(kernels, first + 1):
        parts = [tiles[at(tiles, axis, k)] for k in range(kernel)]
        tiles = reduce(lambda one, later: mx.maximum(later, one), parts)
    return tiles


def _tiles_gradient(
    g: mx.array, top: mx.array, x: mx.array, first: int, kernels: Sequence[int]
) -> mx.array:
    """Give G to the first element of each window that is its largest; the last if that is nan."""
    tiles = _tiles(x, first, kernels)
    elements = list(product(*([(slice(None), k) for k in range(kernel)] for kernel in kernels)))
    keys = [(*[slice(None)] * first, *sum(element, ())) for element in elements[:-1]]
    below = [tiles[key] != top for key in keys]
    all_below = list(accumulate(below, mx.logical_and))
    later = (one >= before for one, before in zip(below[1:], all_below, strict=False))
    hidden = [below[0], *later, mx.logical_not(all_below[-1])]
    for axis, kernel in reversed(list(enumerate(kernels, first + 1))):
        rows = range(0, len(hidden), kernel)
        hidden = [mx.stack(hidden[i : i + kernel], axis=axis) for i in rows]
    wide = mx.expand_dims(g, [first + 2 * i + 1 for i in range(len(kernels))])
    found = zero_where(hidden[0], mx.broadcast_to(wide, hidden[0].shape))
    for axis in range(first, first + len(kernels)):
        found = mx.flatten(found, axis, axis + 1)
        if found.shape[axis] < x.shape[axis]:
            found = padded_axis(found, axis, 0, x.shape[axis], 0)
    return found


def _windows(axes: int, *sizes: Sizes) -> list[_Window]:
    return [_Window(*each) for each in zip(*(repeated(s, axes) for s in sizes), strict=True)]


def _pooling(axes: int) -> Callable[..., Callable[[mx.array], mx.array]]:
    def pooling(
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        last: bool = False,
    ) -> Callable[[mx.array], mx.array]:
        windows = (*_windows(axes, kernel_size, stride or kernel_size, padding, dilation),)
        kernels = tuple(window.kernel for window in windows)

        def pool(self: mx.array) -> mx.array:
            channels = self.ndim - axes - 1
            moved = self if last else mx.moveaxis(self, channels, -1)  # as convolutions leave them
            if not ceil_mode and _side_by_side(moved.shape[channels:-1], windows):
                moved = _tops(channels, kernels)(moved)
            else:
                for axis, window in reversed(list(enumerate(windows, channels))):  # last axis first
                    moved = _max_along(moved, axis, window, ceil_mode)
            return moved if last else mx.moveaxis(moved, -1, channels)

        return pool

    return pooling


def _max_pool(axes: int) -> Callable[..., mx.array]:
    pooling = _pooling(axes)

    @made_by(pooling)
    def pool(  # noqa: PLR0913, PLR0917 - the schema's
        self: mx.array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        last: bool = False,
    ) -> mx.array:
        return pooling(kernel_size, stride, padding, dilation, ceil_mode, last)(self)

    return pool


def _found_in(x: mx.array, axes: int, elements: Callable[[mx.array, int, int], mx.array]) -> _Found:
    """Reduce the last AXES of X, windows by ELEMENTS (array, axis, which); return values and places."""
    found, weight = _Found(x, mx.zeros(x.shape, mx.int64)), 1
    for back in range(1, axes + 1):
        axis = x.ndim - back
        found = _along(found, axis, elements(found.values, axis, axes - back), weight)
        weight *= x.shape[axis]
    return found


def _max_pool_with_places(axes: int) -> Callable[..., _Found]:
    def pool(
        self: mx.array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> _Found:
        windows = _windows(axes, kernel_size, stride or kernel_size, padding, dilation)
        return _found_in(
            self, axes, lambda x, axis, which: _sliding(x, axis, windows[which], ceil_mode)
        )

    return pool


def _stretches(length: int, count: int) -> mx.array:
    """Return COUNT stretches from floor(i L / n) to ceil((i + 1) L / n); -1 behind their ends."""
    starts = np.arange(count) * length // count
    ends = -(-(np.arange(count) + 1) * length // count)
    places = starts[:, None] + np.arange(max((ends - starts).max(initial=0), 1))
    return mx.array(np.where(places < ends[:, None], places, -1))


def _adaptive_max_pool(axes: int) -> Callable[..., _Found]:
    def pool(self: mx.array, output_size: Sizes) -> _Found:
        counts = repeated(output_size, axes)
        return _found_in(
            self, axes, lambda x, axis, which: _stretches(x.shape[axis], counts[which])
        )

    return pool


def _max_unpool(axes: int) -> Callable[..., mx.array]:
    def unpool(self: mx.array, indices: mx.array, output_size: Sequence[int], **_: Any) -> mx.array:
        """Put every value where it was found, and zeros elsewhere."""
        lead = self.shape[: self.ndim - axes]
        empty = mx.zeros((*lead, math.prod(output_size)), self.dtype)
        values, places = (x.reshape(*lead, -1) for x in (self, indices))
        return mx.put_along_axis(empty, places, values, axis=-1).reshape(*lead, *output_size)

    return unpool


for _n in (1, 2, 3):
    register(
        {
            f"max_pool{_n}d": _max_pool(_n),
            f"max_pool{_n}d_with_indices": _max_pool_with_places(_n),
            f"adaptive_max_pool{_n}d": _adaptive_max_pool(_n),
        }
    )
register({f"max_unpool{n}d": _max_unpool(n) for n in (2, 3)})
