"""Sampling at computed places, and interpolation, against torch."""

from __future__ import annotations

from functools import partial
from itertools import product

import mlx.core as mx
import pytest
import torch
from torch.nn import functional

from weighbridge.converters.captures import capture
from weighbridge.errors import MismatchError, UnsupportedError

PADDINGS = ("zeros", "border", "reflection")
SIZES = {
    "up": {"size": (7, 11)},
    "down": {"size": (3, 2)},
    "by factors": {"scale_factor": (1.7, 0.6)},
}


@pytest.mark.parametrize("align_corners", [False, True])
def test_grids_of_places(agree, align_corners):
    def sample(x, grid, **options):
        return functional.grid_sample(x, 1.3 * grid, align_corners=align_corners, **options)

    images = {
        f"{mode}, {padding}": (
            partial(sample, mode=mode, padding_mode=padding),
            (2, 3, 4, 5),
            (2, 3, 6, 2),
        )
        for mode, padding in product(("bilinear", "nearest", "bicubic"), PADDINGS)
    }
    volumes = {
        f"volume, {mode}": (partial(sample, mode=mode), (1, 2, 4, 5, 3), (1, 3, 2, 2, 3))
        for mode in ("bilinear", "nearest")
    }
    agree(images | volumes, rtol=4e-6)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
def test_affine_grids(agree):
    agree(
        {
            f"{len(size) - 2} axes, {corners}": (
                partial(functional.affine_grid, size=size, align_corners=corners),
                (2, len(size) - 2, len(size) - 1),
            )
            for size, corners in product([(2, 3, 4, 5), (2, 3, 4, 1, 5)], [False, True])
        }
    )


@pytest.mark.parametrize("antialias", [False, True])
def test_interpolation_of_images(agree, antialias):
    agree(
        {
            f"{mode}, {corners}, {name}": (
                partial(
                    functional.interpolate,
                    mode=mode,
                    antialias=antialias,
                    align_corners=corners,
                    **size,
                ),
                (2, 3, 5, 6),
            )
            for mode, corners, (name, size) in product(
                ("bilinear", "bicubic"), [False, True], SIZES.items()
            )
        },
        rtol=4e-6,
    )


def test_interpolation_of_series_and_volumes(agree):
    by = functional.interpolate
    agree(
        {
            "linear": (partial(by, scale_factor=1.7, mode="linear"), (2, 3, 7)),
            "trilinear": (partial(by, size=(3, 7, 2), mode="trilinear"), (2, 3, 7, 4, 4)),
            "nearest": (partial(by, scale_factor=(1.7, 0.6)), (2, 3, 5, 6)),
            "nearest-exact": (
                partial(by, scale_factor=(1.7, 0.6), mode="nearest-exact"),
                (2, 3, 5, 6),
            ),
            "area": (partial(by, size=(3, 4), mode="area"), (2, 3, 5, 6)),
        }
    )


class Shrunk(torch.nn.Module):
    def forward(self, x):
        modes = ("nearest", "bilinear", "bicubic")
        return [functional.interpolate(x, scale_factor=0.2, mode=mode) for mode in modes]


def test_interpolation_to_nothing_is_refused_as_in_torch():
    with pytest.raises(RuntimeError, match="greater than 0"):
        Shrunk()(torch.ones(1, 2, 4, 8))
    with pytest.raises(UnsupportedError, match=r"upsample_\w+.* interpolates 4 to 0 elements"):
        capture(Shrunk(), inputs=[torch.ones(1, 2, 4, 8)])
    captured = capture(
        Shrunk(), inputs=[torch.ones(1, 2, 9, 8)], dynamic={"x": {2: "height"}}, passes=()
    )
    assert [each.shape for each in captured(mx.ones((1, 2, 5, 8)))] == [(1, 2, 1, 1)] * 3
    with pytest.raises(MismatchError, match="the module interpolates 4 to 0 elements"):
        captured(mx.ones((1, 2, 4, 8)))
