"""Resampling, against torch and the examples of coremltools' documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from weighbridge.converters.captures.mlprogram.kernels.images import KERNELS, grid

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
# The examples of coremltools' documentation of resize_bilinear: two points in, five or six out.
DOCUMENTED = [
    ("UNALIGN_CORNERS", 5, [0.0, 0.1, 0.5, 0.9, 1.0]),
    ("STRICT_ALIGN_CORNERS", 5, [0.0, 0.25, 0.5, 0.75, 1.0]),
    ("ALIGN_CORNERS", 6, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ("DEFAULT", 5, [0.0, 0.4, 0.8, 1.0, 1.0]),
    ("DEFAULT", 6, [0.0, 0.33, 0.67, 1.0, 1.0, 1.0]),
    ("OFFSET_CORNERS", 5, [0.1, 0.3, 0.5, 0.7, 0.9]),
    ("OFFSET_CORNERS", 6, [0.08, 0.25, 0.42, 0.58, 0.75, 0.92]),
]
ALIGNED = [("STRICT_ALIGN_CORNERS", True), ("UNALIGN_CORNERS", False)]


@pytest.mark.parametrize(("mode", "target", "expected"), DOCUMENTED)
def test_grids_are_those_of_the_documentation(mode, target, expected):
    np.testing.assert_allclose(grid(mode, 2, target), expected, atol=0.005)


def test_one_point_lies_in_the_middle_when_corners_are_aligned():
    assert grid("ALIGN_CORNERS", 5, 1).tolist() == [2.0]
    assert grid("STRICT_ALIGN_CORNERS", 5, 1).tolist() == [0.0]


@pytest.mark.parametrize(("mode", "align"), ALIGNED)
@pytest.mark.parametrize("size", [(7, 9), (2, 5), (1, 3)])
def test_resize_bilinear_equals_torch(mode, align, size, compute):
    x = torch.from_numpy(IMAGE)
    expected = F.interpolate(x, size=size, mode="bilinear", align_corners=align)
    height, width = (np.int32(s) for s in size)
    got = compute("resize_bilinear", x=IMAGE, target_size_height=height, target_size_width=width,
                  sampling_mode=mode)[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    shape = np.int32([*size])
    again = compute("resize", x=IMAGE, shape=shape, resized_dims=2, sampling_mode=mode)[0]
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("align", [True, False])
def test_upsample_bilinear_recomputes_its_factors_as_torch_does(align, compute):
    x = torch.from_numpy(IMAGE)
    expected = F.interpolate(x, scale_factor=(1.7, 2.0), mode="bilinear", align_corners=align,
                             recompute_scale_factor=True)  # fmt: skip
    got = compute("upsample_bilinear", x=IMAGE, scale_factor_height=np.float32(1.7),
                  scale_factor_width=np.float32(2), align_corners=np.bool_(align))[0]  # fmt: skip
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_nearest_neighbours_equal_torch(compute):
    x = torch.from_numpy(IMAGE)
    expected = F.interpolate(x, size=(7, 3), mode="nearest").numpy()
    got = compute("resize_nearest_neighbor", x=IMAGE, target_size_height=np.int32(7),
                  target_size_width=np.int32(3))[0]  # fmt: skip
    np.testing.assert_array_equal(got, expected)
    factors = {"scale_factor_height": np.int32(2), "scale_factor_width": np.int32(3)}
    doubled = compute("upsample_nearest_neighbor", x=IMAGE, **factors)[0]
    np.testing.assert_array_equal(doubled, F.interpolate(x, scale_factor=(2, 3)).numpy())


def test_resize_without_interpolation_rounds_to_the_nearest_point(compute):
    x = np.float32([[1], [2]])
    got = compute("resize", x=x, shape=np.int32([3, 0]), resized_dims=2,
                  interpolation_mode="NEAREST_NEIGHBOR")[0]  # fmt: skip
    assert got[:, 0].tolist() == [1, 2, 2]


def test_crop_cuts_both_ends(compute):
    got = compute("crop", x=IMAGE, crop_height=np.int32([1, 0]), crop_width=np.int32([2, 1]))[0]
    np.testing.assert_array_equal(got, IMAGE[..., 1:, 2:-1])


def test_every_kernel_of_the_table_is_tested():
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in KERNELS)
