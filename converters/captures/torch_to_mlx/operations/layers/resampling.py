"""Interpolation along the last axes: which elements a new one is made of is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import count as count_from
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ......errors import MismatchError
from ..axes import from_last, to_last
from ..registry import operation

Floats = NDArray[np.floating[Any]]
Sizes = Sequence[int] | None
Factors = Sequence[float] | None


class _Axis(NamedTuple):
    """How an axis is resampled: which one, its new length, and old elements per new one."""

    axis: int
    length: int
    ratio: float


class _Taps(NamedTuple):
    """Which old elements a new one is the sum of, shape ``(new, taps)``, and their weights."""

    places: NDArray[np.int64]
    weights: Floats


def _axes(sizes: Sequence[int], output_size: Sizes, factors: Factors) -> list[_Axis]:
    """Return how each spatial axis, of SIZES, is resampled; factors count where both are given."""
    counts = output_size or [int(n * f) for n, f in zip(sizes, factors or (), strict=True)]
    _check(sizes, counts)
    ratios = [
        1 / factor if factor else size / count
        for size, count, factor in zip(sizes, counts, factors or [0] * len(counts), strict=True)
    ]
    return [_Axis(*each) for each in zip(count_from(2), counts, ratios, strict=False)]


def _check(sizes: Sequence[int], counts: Sizes) -> None:
    """Refuse to make nothing, or something of nothing, as torch does.

    Raises:
        MismatchError: an axis has no elements, or would have none of COUNTS.
    """
    pairs = zip(sizes, counts or (), strict=False)
    if wrong := next((pair for pair in pairs if min(pair) < 1), None):
        what = "the module interpolates {} to {} elements: give it larger inputs".format(*wrong)
        raise MismatchError("the inputs do not fit the captured module", [what])


def _summed(x: mx.array, axis: int, taps: _Taps) -> mx.array:
    """Resample AXIS of X by TAPS."""
    shape = [-1] + [1] * (x.ndim - 1 - axis)
    columns = (np.ascontiguousarray(each.T) for each in taps)  # MLX saves others in a wrong order
    parts = [
        mx.take(x, mx.array(places), axis=axis)
        * mx.array(weights.astype(np.float32)).astype(x.dtype).reshape(shape)
        for places, weights in zip(*columns, strict=True)
    ]
    return reduce(mx.add, parts)


def _named_factors(x: mx.array, factors: Factors, named: dict[str, float | None]) -> Factors:
    """Return the factors of all axes: ``scales``, or ``scales_d``, ``scales_h`` and ``scales_w``."""
    if factors is not None or not named:
        return factors
    names = ["scales"] if x.ndim == 3 else ["scales_d", "scales_h", "scales_w"][5 - x.ndim :]
    found = [named.get(name) for name in names]
    return [factor or 0.0 for factor in found] if any(found) else None


def _repeated(x: mx.array, times: list[int]) -> mx.array:
    """Repeat every element of the axes between the first and the last, each as often as TIMES says."""
    pairs = [size for pair in zip(x.shape[1:-1], times, strict=True) for size in pair]
    ones = [n if i % 2 == 0 else 1 for i, n in enumerate(pairs)]
    wide = mx.broadcast_to(x.reshape(len(x), *ones, x.shape[-1]), (len(x), *pairs, x.shape[-1]))
    sizes = [n * k for n, k in zip(x.shape[1:-1], times, strict=True)]
    return wide.reshape(len(x), *sizes, x.shape[-1])


class _Nearest(NamedTuple):
    """Which element each new one is, and how often each is repeated where all are alike often."""

    places: NDArray[np.int64]
    times: int | None


def _nearest_of(length: int, count: int, ratio: float, shift: float) -> _Nearest:
    """Return what COUNT new elements take of LENGTH old ones, RATIO of an old one apart."""
    places = np.floor((np.arange(count, dtype=np.float32) + shift) * np.float32(ratio))
    nearest: NDArray[np.int64] = np.minimum(places.astype(np.int64), length - 1)
    times = count // max(length, 1)
    even = np.array_equal(nearest, np.repeat(np.arange(length), times))
    return _Nearest(nearest, times if even else None)


def _nearest(shift: float) -> Callable[..., mx.array]:
    @lru_cache(maxsize=1024)  # found again in each call, it would take longer than MLX's graph does
    def taken(
        sizes: tuple[int, ...], counts: tuple[int, ...] | None, factors: tuple[float, ...] | None
    ) -> list[_Nearest]:
        axes = zip(sizes, _axes(sizes, counts, factors), strict=True)
        return [_nearest_of(size, it.length, it.ratio, shift) for size, it in axes]

    def resample(
        input_: mx.array,
        output_size: Sizes = None,
        scale_factors: Factors = None,
        last: bool = False,
        **named: Any,
    ) -> mx.array:
        factors = _named_factors(input_, scale_factors, named)
        moved = to_last(input_, last)  # as convolutions leave channels in memory
        found = taken(moved.shape[1:-1], output_size and (*output_size,), factors and (*factors,))
        times = [each.times for each in found if each.times is not None]
        if len(times) == len(found):
            return from_last(_repeated(moved, times), last)
        for axis, chosen in enumerate(found, 1):
            moved = mx.take(moved, mx.array(chosen.places), axis=axis)
        return from_last(moved, last)

    return resample


def _middles(count: int, length: int, ratio: float, align_corners: bool) -> Floats:
    """Return where new elements lie among the old ones, in float32 as torch computes it."""
    if align_corners:
        step = np.float32((length - 1) / (count - 1) if count > 1 else 0)
        return np.arange(count, dtype=np.float32) * step
    middles: Floats = np.float32(ratio) * (np.arange(count, dtype=np.float32) + 0.5) - 0.5
    return middles


def _linear_taps(count: int, length: int, ratio: float, align_corners: bool) -> _Taps:
    middles = np.maximum(_middles(count, length, ratio, align_corners), 0)
    low = np.minimum(middles.astype(np.int64), length - 1)
    share = middles - low
    places = np.stack([low, np.minimum(low + 1, length - 1)], axis=-1)
    return _Taps(places, np.stack([1 - share, share], axis=-1))


def _cubic(distance: Floats, a: float) -> Floats:
    """Return Keys' cubic convolution (1981, equation 4), A being its free coefficient."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weights: Floats = np.where(d < 1, near, np.where(d < 2, far, 0))
    return weights


def _cubic_taps(count: int, length: int, ratio: float, align_corners: bool) -> _Taps:
    middles = _middles(count, length, ratio, align_corners)
    low = np.floor(middles)
    around = low[:, None] + np.arange(-1, 3, dtype=np.float32)
    weights = _cubic(middles[:, None] - around, -0.75)
    return _Taps(np.clip(around.astype(np.int64), 0, length - 1), weights)


def _smooth_taps(kernel: Callable[[Floats], Floats], reach: int) -> Callable[..., _Taps]:
    """Make the taps of a KERNEL that is widened where the axis shrinks (``antialias``)."""

    def taps(count: int, length: int, ratio: float, align_corners: bool) -> _Taps:
        if align_corners:
            ratio = (length - 1) / (count - 1) if count > 1 else 0.0
        wide = max(ratio, 1.0)
        middles = ratio * (np.arange(count) + 0.5)
        first = np.maximum((middles - reach * wide + 0.5).astype(np.int64), 0)
        ends = np.minimum((middles + reach * wide + 0.5).astype(np.int64), length)
        places = first[:, None] + np.arange(math.ceil(reach * wide) * 2 + 1)
        weights = kernel((places - middles[:, None] + 0.5) / wide)
        weights = np.where(places < ends[:, None], weights, 0)
        return _Taps(np.minimum(places, length - 1), weights / weights.sum(-1, keepdims=True))

    return taps


def _resampled(make: Callable[[int, int, float, bool], _Taps]) -> Callable[..., mx.array]:
    def resample(
        input_: mx.array,
        output_size: Sizes,
        align_corners: bool,
        scale_factors: Factors = None,
        **named: Any,
    ) -> mx.array:
        factors = _named_factors(input_, scale_factors, named)
        for axis, count, ratio in _axes(input_.shape[2:], output_size, factors):
            taps = make(count, input_.shape[axis], ratio, align_corners)
            input_ = _summed(input_, axis, taps)
        return input_

    return resample


def _triangle(distance: Floats) -> Floats:
    weights: Floats = np.maximum(1 - np.abs(distance), 0)
    return weights


def _of_self(resample: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Return RESAMPLE for the overloads that name their input so."""

    def of_self(self: mx.array, **options: Any) -> mx.array:
        return resample(input_=self, **options)

    return of_self


_KINDS = {
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d": _resampled(_linear_taps),
    "upsample_bicubic2d": _resampled(_cubic_taps),
    "_upsample_bilinear2d_aa": _resampled(_smooth_taps(_triangle, 1)),
    "_upsample_bicubic2d_aa": _resampled(_smooth_taps(lambda d: _cubic(d, -0.5), 2)),
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d": _nearest(0.0),
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d": _nearest(0.5),
}
for _names, _handler in _KINDS.items():
    for _name in _names.split():
        operation(f"{_name}.vec")(_handler)
        operation(_name)(_of_self(_handler))
