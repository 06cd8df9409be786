"""Maxima over windows: values, places and gradients where elements are equal."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

EQUALS = torch.randint(0, 3, (2, 3, 7, 8), generator=torch.Generator().manual_seed(0)).float()
WINDOWS = {
    "side by side": {"kernel_size": 2},
    "oblong": {"kernel_size": (3, 4)},
    "row": {"kernel_size": (1, 3), "stride": (1, 3)},
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 3, "stride": 1, "dilation": 2, "padding": 1},
    "uneven": {"kernel_size": (3, 2), "stride": 2, "ceil_mode": True},
    "whole": {"kernel_size": 7},
}
SHAPES = {1: (2, 3, 9), 2: (2, 3, 7, 8), 3: (2, 3, 5, 4, 3)}


def test_of_equal_elements_the_first_is_found_and_gets_the_gradient(agree):
    values = {n: (partial(functional.max_pool2d, **k), EQUALS) for n, k in WINDOWS.items()}
    places = {
        f"{n}, places": (partial(functional.max_pool2d, return_indices=True, **k), EQUALS)
        for n, k in WINDOWS.items()
    }
    agree(values | places)


def test_it_is_the_first_in_order_of_memory_of_volumes_and_lines_too(agree):
    lines, volumes = EQUALS[0], EQUALS.reshape(1, 2, 3, 7, 8)
    agree(
        {
            "lines": (partial(functional.max_pool1d, kernel_size=3), lines),
            "volumes": (partial(functional.max_pool3d, kernel_size=(1, 3, 2)), volumes),
        }
    )


def test_long_windows_are_gathered(agree):
    x = torch.randint(0, 30, (2, 60), generator=torch.Generator().manual_seed(0)).float()
    agree({"long": (partial(functional.max_pool1d, kernel_size=20, stride=7), x)})


def test_nothing_is_found_in_the_padding(agree):
    nothing = lambda x: functional.max_pool2d(x - torch.inf, 2, 2, 1, return_indices=True)[1]  # noqa: E731
    agree({"all minus infinity": (nothing, (1, 1, 4, 4))})


def test_adaptive_maxima(agree):
    agree(
        {
            str(axes): (
                partial(
                    getattr(functional, f"adaptive_max_pool{axes}d"),
                    output_size=3,
                    return_indices=True,
                ),
                shape,
            )
            for axes, shape in SHAPES.items()
        }
    )


def test_values_go_back_to_where_they_were_found(agree):
    agree({str(axes): (partial(back, axes), shape) for axes, shape in SHAPES.items()})


def back(axes, x):
    pool, unpool = (getattr(functional, f"max_{name}{axes}d") for name in ("pool", "unpool"))
    values, places = pool(x, 2, return_indices=True)
    return unpool(values, places, 2, output_size=x.shape)
