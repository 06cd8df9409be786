"""Interpolation along the last axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..registry import operation

Positions = NDArray[np.floating[Any]]
Sizes = Sequence[int] | None
Factors = Sequence[float] | None


def _sizes(x: mx.array, output_size: Sizes, factors: Factors) -> list[tuple[int, int, float]]:
    """Return (axis, new length, old elements per new one) for each spatial axis."""
    axes = range(2, x.ndim)
    if output_size is not None:
        return [(a, n, x.shape[a] / n) for a, n in zip(axes, output_size, strict=True)]
    return [(a, int(x.shape[a] * f), 1 / f) for a, f in zip(axes, factors or (), strict=True)]


def _nearest(shift: float) -> Callable[..., mx.array]:
    def resample(
        input_: mx.array, output_size: Sizes = None, scale_factors: Factors = None
    ) -> mx.array:
        for axis, count, ratio in _sizes(input_, output_size, scale_factors):
            places = np.floor((np.arange(count, dtype=np.float32) + shift) * np.float32(ratio))
            places = np.minimum(places.astype(np.int64), input_.shape[axis] - 1)
            input_ = mx.take(input_, mx.array(places), axis=axis)
        return input_

    return resample


for _n in (1, 2, 3):
    operation(f"upsample_nearest{_n}d.vec")(_nearest(0.0))
    operation(f"_upsample_nearest_exact{_n}d.vec")(_nearest(0.5))


def _places(count: int, length: int, ratio: float, align_corners: bool) -> Positions:
    if align_corners:
        return np.linspace(0, length - 1, count)
    places: Positions = np.maximum((np.arange(count) + 0.5) * ratio - 0.5, 0.0)
    return places


@operation("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def _linear(
    input_: mx.array,
    output_size: Sizes,
    align_corners: bool,
    scale_factors: Factors = None,
) -> mx.array:
    for axis, count, ratio in _sizes(input_, output_size, scale_factors):
        length = input_.shape[axis]
        places = _places(count, length, ratio, align_corners)
        low = np.minimum(places.astype(np.int64), length - 1)
        share = mx.array((places - low).astype(np.float32)).astype(input_.dtype)
        share = share.reshape([-1] + [1] * (input_.ndim - 1 - axis))
        below = mx.take(input_, mx.array(low), axis=axis)
        above = mx.take(input_, mx.array(np.minimum(low + 1, length - 1)), axis=axis)
        input_ = below + (above - below) * share
    return input_
