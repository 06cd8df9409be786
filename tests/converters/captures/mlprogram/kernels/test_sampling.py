"""Images read between their points, against scipy, torchvision's definition and coremltools' own tests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch.nn import functional

from weighbridge.converters.captures.mlprogram.kernels.sampling import affine, crop_resize, resample

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.normal(size=(2, 3, 5, 7)).astype(np.float32)
PLACES = RANDOM.uniform(-6, 12, size=(2, 4, 6, 2)).astype(np.float32)
SCIPY = {
    "constant": "grid-constant",
    "border": "nearest",
    "reflection": "mirror",
    "symmetric": "reflect",
}


@pytest.mark.parametrize("padding", SCIPY)
def test_points_between_and_outside_are_what_scipy_finds(padding):
    found = resample(
        torch.tensor(IMAGE), torch.tensor(PLACES), "bilinear", padding, 1.5, "unnormalized", True
    )
    for image, channel in itertools.product(range(2), range(3)):
        places = np.moveaxis(PLACES[image, ..., ::-1], -1, 0)
        expected = map_coordinates(
            IMAGE[image, channel].astype(np.float64), places, order=1, mode=SCIPY[padding], cval=1.5
        )
        np.testing.assert_allclose(found[image, channel], expected, atol=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["constant", "border", "reflection"])
@pytest.mark.parametrize("aligned", [True, False])
def test_normalized_coordinates_are_those_of_grid_sample(mode, padding, aligned):
    x, places = torch.tensor(IMAGE), torch.tensor(PLACES) / 6
    name = {"constant": "zeros"}.get(padding, padding)
    expected = functional.grid_sample(x, places, mode, name, aligned)
    minus = resample(x, places, mode, padding, 0.0, "normalized_minus_one_to_one", aligned)
    zero = resample(x, (places + 1) / 2, mode, padding, 0.0, "normalized_zero_to_one", aligned)
    torch.testing.assert_close(minus, expected)
    if mode == "bilinear":
        torch.testing.assert_close(zero, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("aligned", [True, False])
def test_an_affine_map_is_that_of_affine_grid(aligned):
    x = torch.tensor(IMAGE)
    matrix = torch.tensor(RANDOM.normal(size=(2, 6)).astype(np.float32))
    places = functional.affine_grid(matrix.reshape(2, 2, 3), [2, 3, 4, 6], align_corners=aligned)
    expected = functional.grid_sample(x, places, "bilinear", "zeros", aligned)
    found = affine(x, matrix, 4, 6, align_corners=aligned)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_boxes_are_cut_at_even_steps_from_corner_to_corner():
    x, box = torch.tensor(IMAGE), [0.5, 1.0, 3.0, 4.0]
    boxes = torch.tensor([box, [3.0, 4.0, 0.5, 1.0]])
    found = crop_resize(x, None, boxes, torch.tensor([1, 0]), 3, 4, sampling_mode="ALIGN_CORNERS")
    rows, columns = np.linspace(0.5, 3, 3), np.linspace(1, 4, 4)
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij"))
    expected = [map_coordinates(IMAGE[1, c].astype(np.float64), grid, order=1) for c in range(3)]
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    turned = crop_resize(x, None, boxes[:1], torch.tensor([0]), 3, 4, sampling_mode="ALIGN_CORNERS")
    torch.testing.assert_close(found[1], turned[0].flip(-1, -2))


def test_rois_give_every_image_and_centres_and_sizes_mean_the_same_box():
    x = torch.tensor(IMAGE)
    corners = torch.tensor([0.5, 1.0, 3.0, 4.0]).reshape(1, 1, 4, 1, 1)
    centred = torch.tensor([1.75, 2.5, 2.5, 3.0]).reshape(1, 1, 4, 1, 1)
    one = crop_resize(x, corners, None, None, 2, 2, sampling_mode="OFFSET_CORNERS")
    how = {"box_coordinate_mode": "CENTER_SIZE_HEIGHT_FIRST", "sampling_mode": "OFFSET_CORNERS"}
    assert one.shape == (1, 2, 3, 2, 2)
    torch.testing.assert_close(crop_resize(x, centred, None, None, 2, 2, **how), one)


def test_what_lies_outside_is_padded_and_a_mode_that_is_not_documented_is_refused():
    x, boxes = torch.tensor(IMAGE), torch.tensor([[0.0, 0.0, 1.5, 1.0]])
    how = {"normalized_coordinates": True, "sampling_mode": "ALIGN_CORNERS", "pad_value": 9.0}
    found = crop_resize(x, None, boxes, None, 2, 2, **how)
    assert (found[0, :, 1] == 9).all()
    torch.testing.assert_close(found[0, :, 0, 0], x[0, :, 0, 0])
    with pytest.raises(ValueError, match="not documented for boxes"):
        crop_resize(x, None, boxes, None, 2, 2, sampling_mode="DEFAULT")
