"""Sampling at computed places, and interpolation, against torch."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
from torch.nn import functional

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
