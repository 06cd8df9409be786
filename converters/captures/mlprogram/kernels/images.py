"""Kernels that resample images.

The grids are those of coremltools' documentation of ``resize_bilinear`` and ``upsample_bilinear``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from .kernel import Function, Ints


def grid(mode: str, source: int, target: int) -> Tensor:
    """Return where each of TARGET points lies among SOURCE points, in units of the source.

    >>> [round(x, 2) for x in grid("UNALIGN_CORNERS", 2, 5).tolist()]
    [0.0, 0.1, 0.5, 0.9, 1.0]
    >>> [round(x, 2) for x in grid("DEFAULT", 2, 5).tolist()]
    [0.0, 0.4, 0.8, 1.0, 1.0]
    """
    steps = torch.arange(target, dtype=torch.float64)
    aligned = (source - 1) / max(target - 1, 1)
    delta = max(1, source - 1) / target
    points = {
        "STRICT_ALIGN_CORNERS": steps * aligned,
        "ALIGN_CORNERS": steps * aligned if target > 1 else steps + (source - 1) / 2,
        "DEFAULT": steps * source / target,
        "OFFSET_CORNERS": (steps + 0.5) * delta,
        "UNALIGN_CORNERS": (steps + 0.5) * source / target - 0.5,
    }[mode]
    return points.clamp(0, source - 1)


def interpolate(x: Tensor, axis: int, points: Tensor) -> Tensor:
    """Interpolate linearly at POINTS along AXIS."""
    low = points.floor().long()
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    weight = (points - low).to(x.dtype).reshape([-1] + [1] * (-1 - axis))
    return x.index_select(axis, low) * (1 - weight) + x.index_select(axis, high) * weight


def nearest(x: Tensor, axis: int, target: int) -> Tensor:
    """Repeat the source point at or before each target point along AXIS."""
    return x.index_select(axis, torch.arange(target) * x.shape[axis] // target)


def bilinear(x: Tensor, mode: str, height: int, width: int) -> Tensor:
    """Resize the last two axes by linear interpolation."""
    x = interpolate(x, -2, grid(mode, x.shape[-2], height))
    return interpolate(x, -1, grid(mode, x.shape[-1], width))


def upsample_bilinear(
    x: Tensor,
    scale_factor_height: float = 1.0,
    scale_factor_width: float = 1.0,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Tensor:
    """Enlarge by factors; the factors are recomputed from the sizes, rounded down."""
    height = math.floor(x.shape[-2] * scale_factor_height)
    width = math.floor(x.shape[-1] * scale_factor_width)
    unaligned = "DEFAULT" if half_pixel_centers is False else "UNALIGN_CORNERS"
    return bilinear(x, "STRICT_ALIGN_CORNERS" if align_corners else unaligned, height, width)


def resize_bilinear(
    x: Tensor,
    target_size_height: int = 1,
    target_size_width: int = 1,
    sampling_mode: str = "DEFAULT",
) -> Tensor:
    """Resize to given sizes by linear interpolation."""
    return bilinear(x, sampling_mode, target_size_height, target_size_width)


def resize_nearest_neighbor(x: Tensor, target_size_height: int, target_size_width: int) -> Tensor:
    """Resize to given sizes without interpolation."""
    return nearest(nearest(x, -2, target_size_height), -1, target_size_width)


def upsample_nearest_neighbor(
    x: Tensor, scale_factor_height: float = 1.0, scale_factor_width: float = 1.0
) -> Tensor:
    """Enlarge by factors without interpolation; sizes are rounded down."""
    height = math.floor(x.shape[-2] * scale_factor_height)
    return resize_nearest_neighbor(x, height, math.floor(x.shape[-1] * scale_factor_width))


def resize(
    x: Tensor,
    shape: Ints,
    resized_dims: int,
    interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Tensor:
    """Resize the last RESIZED_DIMS axes to the last entries of SHAPE; 0 keeps a size."""
    for axis in range(-resized_dims, 0):
        target = shape[axis] or x.shape[axis]
        points = grid(sampling_mode, x.shape[axis], target)
        if interpolation_mode == "LINEAR":
            x = interpolate(x, axis, points)
        else:
            x = x.index_select(axis, (points + 0.5).floor().long())
    return x


def crop(x: Tensor, crop_height: Ints, crop_width: Ints) -> Tensor:
    """Cut the given amounts off the last two axes, before and after."""
    (top, bottom), (left, right) = crop_height, crop_width
    return x[..., top : x.shape[-2] - bottom, left : x.shape[-1] - right]


KERNELS: Final[Mapping[str, Function]] = {
    "crop": crop,
    "resize": resize,
    "resize_bilinear": resize_bilinear,
    "resize_nearest_neighbor": resize_nearest_neighbor,
    "upsample_bilinear": upsample_bilinear,
    "upsample_nearest_neighbor": upsample_nearest_neighbor,
}
