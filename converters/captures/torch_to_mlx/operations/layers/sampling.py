"""Sampling of images and volumes at places that are computed (Jaderberg et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import mlx.core as mx

from ..registry import operation

BILINEAR, NEAREST, BICUBIC = 0, 1, 2  # torch's numbers
ZEROS, BORDER = 0, 1
CUBIC: Final = -0.75  # the free coefficient of Keys' cubic convolution (1981) that torch chose


def _unnormalized(grid: mx.array, size: int, align_corners: bool) -> mx.array:
    """Return places in elements: -1 and 1 are the corners' middles, or their outer edges."""
    return (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2


def _clipped(places: mx.array, size: int) -> mx.array:
    """Clip to the elements that there are; at the borders no gradient goes through, as in torch."""
    low, high = mx.zeros_like(places), mx.full(places.shape, size - 1, places.dtype)
    return mx.where(places <= 0, low, mx.where(places >= size - 1, high, places))


def _reflected(places: mx.array, size: int, align_corners: bool) -> mx.array:
    """Reflect at the borders: middles of the corners, or their outer edges."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if not span:
        return mx.zeros_like(places)
    away = mx.abs(places - low)
    turns = mx.stop_gradient(mx.floor(away / span))
    rest = away - turns * span
    return mx.where(mx.remainder(turns, 2) == 0, rest, span - rest) + low


def _inside(places: mx.array, size: int, padding: int, align_corners: bool) -> mx.array:
    """Bring PLACES inside an axis of SIZE, unless what is outside counts as zero."""
    if padding == ZEROS:
        return places
    if padding != BORDER:
        places = _reflected(places, size, align_corners)
    return _clipped(places, size)


def _read(x: mx.array, places: Sequence[mx.array]) -> mx.array:
    """Read X, shape ``(batch, channels, *sizes)``, at whole PLACES, ``(batch, *out)``; 0 outside."""
    sizes = x.shape[2:]
    flat, there = mx.zeros(places[0].shape, mx.int32), mx.ones(places[0].shape, mx.bool_)
    for place, size in zip(places, sizes, strict=True):
        there = mx.logical_and(there, mx.logical_and(place >= 0, place <= size - 1))
        flat = flat * size + mx.clip(place, 0, size - 1).astype(mx.int32)
    index = mx.stop_gradient(flat.reshape(x.shape[0], 1, -1))
    wide = mx.broadcast_to(index, (*x.shape[:2], index.shape[-1]))
    values = mx.take_along_axis(x.reshape(*x.shape[:2], -1), wide, axis=-1)
    values = values.reshape(*x.shape[:2], *flat.shape[1:])
    return mx.where(there[:, None], values, mx.zeros_like(values))


def _cubic_weights(share: mx.array) -> list[mx.array]:
    """Return Keys' weights of the four elements around a place SHARE past the second.

    Factored, so that neither they nor their gradients are differences of larger numbers.
    """
    rest = 1 - share
    outer = CUBIC * share * rest

    def inner(near: mx.array, far: mx.array) -> mx.array:
        return near * (1 + far * (1 - (CUBIC + 2) * far))

    return [outer * rest, inner(rest, share), inner(share, rest), outer * share]


def _interpolated(
    x: mx.array,
    places: Sequence[mx.array],
    weights: Callable[[mx.array], list[mx.array]],
    first: int,
    moved: Callable[[mx.array, int], mx.array],
) -> mx.array:
    """Sum the elements around PLACES, from FIRST on along each axis, by their WEIGHTS."""
    floors = [mx.stop_gradient(mx.floor(place)) for place in places]
    shares = [weights(place - floor) for place, floor in zip(places, floors, strict=True)]
    total = mx.zeros((*x.shape[:2], *places[0].shape[1:]), x.dtype)
    for corner in product(range(len(shares[0])), repeat=len(places)):
        here = [
            moved(floor + first + k, axis)
            for axis, (floor, k) in enumerate(zip(floors, corner, strict=True))
        ]
        weight = shares[0][corner[0]]
        for share, k in zip(shares[1:], corner[1:], strict=True):
            weight = weight * share[k]
        total = total + _read(x, here) * weight[:, None]
    return total


@operation("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    input_: mx.array,
    grid: mx.array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> mx.array:
    """Sample INPUT, shape ``(batch, channels, *sizes)``, at GRID, ``(batch, *out, axes)``, last axis first."""
    sizes = input_.shape[2:]
    raw = [
        _unnormalized(grid[..., len(sizes) - 1 - axis], size, align_corners)
        for axis, size in enumerate(sizes)
    ]

    def inside(place: mx.array, axis: int) -> mx.array:
        return _inside(place, sizes[axis], padding_mode, align_corners)

    if interpolation_mode == BICUBIC:  # what is read is brought inside, not the place
        return _interpolated(input_, raw, _cubic_weights, -1, inside)
    places = [inside(place, axis) for axis, place in enumerate(raw)]
    if interpolation_mode == NEAREST:
        return _read(input_, [mx.stop_gradient(mx.round(place)) for place in places])
    return _interpolated(input_, places, lambda t: [1 - t, t], 0, lambda place, _: place)


def _steps(count: int, align_corners: bool) -> mx.array:
    """Return COUNT places from -1 to 1, middles of elements unless corners are aligned."""
    if count <= 1:
        return mx.zeros(count)
    steps = mx.linspace(-1, 1, count)
    return steps if align_corners else steps * ((count - 1) / count)


@operation("affine_grid_generator")
def _affine_grid(theta: mx.array, size: Sequence[int], align_corners: bool) -> mx.array:
    """Return where the affine maps THETA, shape ``(batch, axes, axes + 1)``, send the elements of SIZE."""
    axes = [_steps(count, align_corners) for count in size[2:]]
    places = mx.meshgrid(*axes, indexing="ij")
    base = mx.stack([*places[::-1], mx.ones_like(places[0])], axis=-1).astype(theta.dtype)
    moved = base.reshape(1, -1, base.shape[-1]) @ mx.swapaxes(theta, -1, -2)
    return moved.reshape(size[0], *size[2:], len(axes))
