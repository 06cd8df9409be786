"""Kernels that read images at coordinates between their points."""

# ruff: noqa: PLR0913, PLR0917  (a kernel has the inputs of its MIL operation)

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from .kernel import Function

ZERO_TO_ONE: Final = "normalized_zero_to_one"
UNNORMALIZED: Final = "unnormalized"


def normalized(points: Tensor, size: int, aligned: bool) -> Tensor:
    """Return POINTS, where 0 is the first and SIZE - 1 the last, between -1 and 1.

    ALIGNED puts -1 and 1 on the middle of the first and the last point, else on their outer edges.

    >>> normalized(torch.tensor([0.0, 3.0]), 4, True).tolist()
    [-1.0, 1.0]
    """
    return points * 2 / max(size - 1, 1) - 1 if aligned else (points * 2 + 1) / size - 1


def resample(
    x: Tensor,
    coordinates: Tensor,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Tensor:
    """Read X, of shape (batch, channels, height, width), at COORDINATES, pairs of x and y.

    Outside lies PADDING_VALUE (``constant``), the nearest point (``border``), or the image turned round:
    about its outermost points or, for ``symmetric`` and where corners are not aligned, about their edges,
    as torch's ``grid_sample`` has it, which coremltools translates to this.
    """
    height, width = x.shape[-2:]
    places, aligned = coordinates.float(), align_corners
    if coordinates_mode == ZERO_TO_ONE:
        places = places * 2 - 1
    if coordinates_mode == UNNORMALIZED or (padding_mode == "symmetric" and aligned):
        if coordinates_mode != UNNORMALIZED:
            sizes = torch.tensor([width - 1, height - 1])
            places = (places + 1) / 2 * sizes
        aligned = padding_mode == "reflection"
        parts = (normalized(places[..., i], n, aligned) for i, n in enumerate((width, height)))
        places = torch.stack(tuple(parts), -1)
    shift = padding_value if padding_mode == "constant" else 0.0
    mode = {"constant": "zeros", "symmetric": "reflection"}.get(padding_mode, padding_mode)
    found = functional.grid_sample(x - shift, places, sampling_mode, mode, aligned)
    return found + shift


def affine(
    x: Tensor,
    transform_matrix: Tensor,
    output_height: int,
    output_width: int,
    sampling_mode: str = "bilinear",
    padding_mode: str = "constant",
    padding_value: float = 0.0,
    coordinates_mode: str = "normalized_minus_one_to_one",
    align_corners: bool = True,
) -> Tensor:
    """Read X where a linear map of the target's coordinates leads, six numbers for each image or for all."""
    matrices = transform_matrix.float().reshape(-1, 2, 3).expand(len(x), 2, 3)
    steps = [
        torch.linspace(-1, 1, n) if n > 1 else torch.zeros(1) for n in (output_height, output_width)
    ]
    if not align_corners:
        steps = [step * (len(step) - 1) / len(step) for step in steps]
    y, x_ = torch.meshgrid(*steps, indexing="ij")
    base = torch.stack((x_, y, torch.ones_like(x_)), -1)
    places = torch.einsum("hwk,bjk->bhwj", base, matrices)
    how = (sampling_mode, padding_mode, padding_value, coordinates_mode, align_corners)
    return resample(x, places, *how)


def lines(mode: str, start: Tensor, end: Tensor, target: int) -> Tensor:
    """Return TARGET points of each box from START to END, shape (boxes, target).

    Only the modes whose points MIL's documentation gives for a box are known: both ends and even steps
    between them, and the middles of parts of at least one point (``OFFSET_CORNERS``, RoI Align).

    Raises:
        ValueError: another mode.
    """
    steps = torch.arange(target, dtype=torch.float32)
    if mode == "OFFSET_CORNERS":
        return start[:, None] + (steps + 0.5) * (end - start).clamp(min=1)[:, None] / target
    if mode not in ("ALIGN_CORNERS", "STRICT_ALIGN_CORNERS"):
        raise ValueError(f"sampling_mode {mode} is not documented for boxes")
    if target == 1 and mode == "ALIGN_CORNERS":
        return ((start + end) / 2)[:, None]
    return start[:, None] + steps * (end - start)[:, None] / max(target - 1, 1)


def crop_resize(
    x: Tensor,
    roi: Tensor | None = None,
    boxes: Tensor | None = None,
    box_indices: Tensor | None = None,
    target_height: int = 1,
    target_width: int = 1,
    normalized_coordinates: bool = False,
    spatial_scale: float = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: float | None = None,
) -> Tensor:
    """Cut boxes out of images and resize them by linear interpolation.

    Before iOS 17 boxes are ROI, of shape (boxes, 1, 4 or 5, 1, 1): of every image, or with its number first;
    the result has an axis of images. Since then they are BOXES, of shape (boxes, 4), each of the image that
    BOX_INDICES says, by default the one of its own number. Outside lies PAD_VALUE, before iOS 16 the
    nearest point.
    """
    since = boxes is not None
    given = roi.reshape(len(roi), -1) if roi is not None else boxes
    cut = torch.zeros(0, 4) if given is None else given.float()
    if cut.shape[1] == 5:
        box_indices, cut = cut[:, 0], cut[:, 1:]
    elif since and box_indices is None:
        box_indices = torch.arange(len(cut))
    size = torch.tensor(x.shape[-2:])
    corners = corners_of(cut, box_coordinate_mode) * spatial_scale
    corners = corners * (size - 1).repeat(2) if normalized_coordinates else corners
    rows = lines(sampling_mode, corners[:, 0], corners[:, 2], target_height)
    columns = lines(sampling_mode, corners[:, 1], corners[:, 3], target_width)
    pairs = enumerate(zip(rows, columns, strict=True))
    whose = [x if box_indices is None else x[int(box_indices[n]), None] for n in range(len(cut))]
    found = torch.stack([at_lines(whose[n], *both, pad_value) for n, both in pairs])
    return found[:, 0] if since else found


def at_lines(x: Tensor, rows: Tensor, columns: Tensor, pad_value: float | None) -> Tensor:
    """Read X where ROWS and COLUMNS meet; outside lies PAD_VALUE, or the nearest point."""
    height, width = x.shape[-2:]
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
    how = ("bilinear", "border", 0.0, UNNORMALIZED, False)
    found = resample(x, places.expand(len(x), -1, -1, 2), *how)
    if pad_value is None:
        return found
    down, across = (rows >= 0) & (rows <= height - 1), (columns >= 0) & (columns <= width - 1)
    return torch.where(down[:, None] & across, found, pad_value)


def corners_of(boxes: Tensor, mode: str) -> Tensor:
    """Return BOXES as (top, left, bottom, right)."""
    order = [0, 1, 2, 3] if mode.endswith("HEIGHT_FIRST") else [1, 0, 3, 2]
    one, two = boxes[:, order[:2]], boxes[:, order[2:]]
    return torch.cat(
        (one - two / 2, one + two / 2) if mode.startswith("CENTER") else (one, two), -1
    )


KERNELS: Final[Mapping[str, Function]] = {
    "crop_resize": crop_resize,
    "affine": affine,
    "resample": resample,
}
