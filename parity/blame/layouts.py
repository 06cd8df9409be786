"""How the axes of a site lie on either side: channels last in MLX, after the batch in PyTorch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Final

import numpy as np

from ...converters.values import Array

Axes = tuple[int, ...]
MOST_AXES: Final = 5
ROWS: Final = 2  # axes of an array that has a row for each token
NEARER: Final = 0.5  # values tell an order whose gap is less than this share of any other's


def arranged(array: Array, axes: Axes, shape: tuple[int, ...]) -> Array:
    """Return ARRAY with its AXES in that order, as SHAPE, whose inner axes may be merged."""
    return np.ascontiguousarray(array.transpose(axes)).reshape(shape)


def put_back(array: Array, axes: Axes, shape: tuple[int, ...]) -> Array:
    """Return what :func:`arranged` made, in SHAPE again.

    >>> image, last = np.arange(24).reshape(1, 2, 3, 4), (0, 2, 3, 1)
    >>> bool((put_back(arranged(image, last, (1, 12, 2)), last, image.shape) == image).all())
    True
    """
    moved = array.reshape([shape[axis] for axis in axes])
    return moved.transpose(np.argsort(axes))


def fitting(wanted: tuple[int, ...], found: tuple[int, ...]) -> Iterator[Axes]:
    """Yield the orders of axes in which an array of shape WANTED may lie as one of shape FOUND.

    Rows of all tokens together, as a mixture of experts takes them, may be apart by text in FOUND.

    >>> list(fitting((2, 8, 4, 6), (2, 24, 8))), list(fitting((2, 5, 5), (2, 5, 5)))
    ([(0, 2, 3, 1), (0, 3, 2, 1)], [(0, 1, 2), (0, 2, 1)])
    >>> list(fitting((10, 8), (2, 5, 8)))
    [(0, 1)]
    """
    if math.prod(wanted) != math.prod(found) or not 0 < len(wanted) <= MOST_AXES:
        return
    if len(found) > len(wanted):
        if len(wanted) == ROWS and wanted[-1] == found[-1]:
            yield (0, 1)
        return
    if not found:
        return
    for axes in permutations(range(len(wanted))):
        moved = tuple(wanted[axis] for axis in axes)
        ends = moved[0] == found[0] and moved[-1] == found[-1]
        if moved == found or (ends and len(found) < len(wanted)):
            yield axes


def orders_of(wanted: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, Axes]:
    """Return in which order of axes each site of a candidate lies, from a run of it, right or not.

    Where sizes alone leave several, values decide; where these do not, what most other sites do.
    """
    orders: dict[str, Axes] = {}
    open_: dict[str, list[Axes]] = {}
    for site in (it for it in found if it in wanted):
        options = [*fitting(wanted[site].shape, found[site].shape)]
        gaps = sorted((gap(found[site], wanted[site], axes), axes) for axes in options)
        if len(gaps) == 1 or (gaps and gaps[0][0] < NEARER * gaps[1][0]):
            orders[site] = gaps[0][1]
        elif options:
            open_[site] = options
    usual = [axes for axes, _ in Counter(orders.values()).most_common()]
    return orders | {
        site: next((axes for axes in usual if axes in options), options[0])
        for site, options in open_.items()
    }


def gap(found: Array, wanted: Array, axes: Axes) -> float:
    """Return how far FOUND is from WANTED with its axes in that order; infinite where one is no number."""
    difference = np.asarray(found, np.float64) - arranged(wanted, axes, found.shape)
    size = float(np.linalg.norm(difference))
    return size if math.isfinite(size) else math.inf
