"""Scales moved from one tensor into another, as AWQ does: found again from the values alone.

AWQ (Lin et al. 2023, section 3.2) multiplies the columns of a weight and divides what comes before
by the same: a norm, or the rows of another weight. Neither changes what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
# Yields (rows, quantized, original) of a matrix, a few rows at a time.
Blocks = Callable[[], Iterator[tuple[slice, NDArray[np.float32], NDArray[np.float32]]]]

ROUNDS: Final = 3  # alternations; the first two do nearly all
LEAST: Final = 1e-12  # of the square of what was fitted: so much is left by float32 itself
ALIKE: Final = 1e-3  # of a change: what is left of it when it multiplies everything alike


class Scaling(NamedTuple):
    """``rows`` and ``columns`` by which a matrix was multiplied; their product is what counts."""

    rows: Vector
    columns: Vector


class Fit(NamedTuple):
    """The scales found in a matrix, and the variance of each, relative: that of least squares."""

    rows: Vector
    columns: Vector
    row_errors: Vector
    column_errors: Vector


class Gain(NamedTuple):
    """How much of a change is there, and the standard error of that."""

    value: float
    error: float


def fit(blocks: Blocks, shape: tuple[int, int]) -> Fit:
    """Return the scales that bring the original matrix of SHAPE nearest to the quantized one.

    Least squares for the columns with the rows given, and the other way round.
    """
    rows, columns = np.ones(shape[0]), np.ones(shape[1])
    row_errors = np.zeros(shape[0])
    for _ in range(ROUNDS):
        sums = np.zeros((3, shape[1]))
        for place, quantized, original in blocks():
            scaled = original * rows[place, None].astype(np.float32)
            sums += _products("ij,ij->j", scaled, quantized)
        columns, column_errors = _ratio(sums, shape[0])
        for place, quantized, original in blocks():
            scaled = original * columns.astype(np.float32)
            products = _products("ij,ij->i", scaled, quantized)
            rows[place], row_errors[place] = _ratio(products, shape[1])
    return Fit(rows, columns, row_errors, column_errors)


def _products(what: str, scaled: NDArray[Any], quantized: NDArray[Any]) -> Vector:
    pairs = ((scaled, quantized), (scaled, scaled), (quantized, quantized))
    return np.stack([_sum(what, one, other) for one, other in pairs])


def _sum(what: str, *operands: NDArray[Any]) -> Vector:
    return np.asarray(np.einsum(what, *operands, dtype=np.float64, casting="unsafe"))


def _ratio(products: Vector, count: int) -> tuple[Vector, Vector]:
    """Return cross / square, 1 where there is nothing to tell it from, and its relative variance.

    PRODUCTS are these two and the square of what was fitted; COUNT is how many values that has.
    """
    cross, square, whole = products
    found = np.divide(cross, square, out=np.ones_like(cross), where=square > 0)
    shown = cross * found
    left = np.maximum(whole - shown, LEAST * whole) / max(count - 1, 1)
    return found, np.divide(left, shown, out=np.full_like(cross, np.inf), where=shown > 0)


def gain(blocks: Blocks, factors: Scaling) -> Gain:
    """Return how much of the change that FACTORS make to the original is in the quantized matrix.

    1 if it was multiplied by them, about 0 if they have nothing to do with it: the projection of
    the difference on the change, the part of it that multiplies the whole matrix left out. Its error
    is that of least squares.
    """
    sums, count, noise = np.zeros(5), 0, 0.0
    for place, quantized, original in blocks():
        scale = factors.rows[place, None] * factors.columns
        change, apart = original * (scale - 1), quantized - original
        pairs = ((change, change), (change, original), (original, original))
        sums[:3] += [np.vdot(one, other) for one, other in pairs]
        sums[3:] += [np.vdot(apart, change), np.vdot(apart, original)]
        count, noise = count + apart.size, noise + float(np.vdot(apart, apart))
    square, overlap, whole, shared, part = sums
    share = overlap / whole if whole else 0.0
    left = square - share * overlap
    if left < ALIKE * square:  # the factors are all the same
        return _gain(shared, square, noise, count)
    return _gain(shared - share * part, left, noise - (part * part / whole if whole else 0), count)


def _gain(cross: float, square: float, noise: float, count: int) -> Gain:
    """Return the gain of one regressor, of NOISE in COUNT values before it is taken out."""
    if not square > 0:
        return Gain(0.0, np.inf)
    left = max(noise - cross * cross / square, 0.0)
    return Gain(float(cross / square), float(np.sqrt(left / square / count)))


def ratios(stored: NDArray[Any], original: NDArray[Any]) -> Iterator[Vector]:
    """Yield what ORIGINAL was multiplied by, element by element, where that is positive throughout.

    Norms that add one to their weights (Gemma) are tried as well.
    """
    for shift in (0.0, 1.0):
        above, below = (np.ravel(it).astype(np.float64) + shift for it in (stored, original))
        empty = (above == 0) & (below == 0)
        if np.all((above * below > 0) | empty):
            yield np.divide(above, below, out=np.ones_like(above), where=~empty)
