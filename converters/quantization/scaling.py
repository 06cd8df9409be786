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
ALIKE: Final = 1e-3  # of a change: what is left of it when it multiplies everything alike


class Scaling(NamedTuple):
    """``rows`` and ``columns`` by which a matrix was multiplied; their product is what counts."""

    rows: Vector
    columns: Vector


def fit(blocks: Blocks, shape: tuple[int, int]) -> Scaling:
    """Return the scales that bring the original matrix of SHAPE nearest to the quantized one.

    Least squares for the columns with the rows given, and the other way round.
    """
    rows, columns = np.ones(shape[0]), np.ones(shape[1])
    for _ in range(ROUNDS):
        cross, square = np.zeros_like(columns), np.zeros_like(columns)
        for place, quantized, original in blocks():
            scaled = original * rows[place, None].astype(np.float32)
            cross += _sum("ij,ij->j", scaled, quantized)
            square += _sum("ij,ij->j", scaled, scaled)
        columns = _ratio(cross, square)
        for place, quantized, original in blocks():
            scaled = original * columns.astype(np.float32)
            rows[place] = _ratio(
                _sum("ij,ij->i", scaled, quantized), _sum("ij,ij->i", scaled, scaled)
            )
    return Scaling(rows, columns)


def _sum(what: str, *operands: NDArray[Any]) -> Vector:
    return np.asarray(np.einsum(what, *operands, dtype=np.float64, casting="unsafe"))


def _ratio(cross: Vector, square: Vector) -> Vector:
    """Return CROSS / SQUARE, 1 where there is nothing to tell it from."""
    return np.divide(cross, square, out=np.ones_like(cross), where=square > 0)


def gain(blocks: Blocks, factors: Scaling) -> float:
    """Return how much of the change that FACTORS make to the original is in the quantized matrix.

    1 if it was multiplied by them, about 0 if they have nothing to do with it: the projection of
    the difference on the change, the part of it that multiplies the whole matrix left out.
    """
    sums = np.zeros(5)
    for place, quantized, original in blocks():
        scale = factors.rows[place, None] * factors.columns
        change, apart = original * (scale - 1), quantized - original
        pairs = ((change, change), (change, original), (original, original))
        sums[:3] += [np.vdot(one, other) for one, other in pairs]
        sums[3:] += [np.vdot(apart, change), np.vdot(apart, original)]
    square, overlap, whole, shared, part = sums
    share = overlap / whole if whole else 0.0
    left = square - share * overlap
    if left < ALIKE * square:  # the factors are all the same
        return float(shared / square)
    return float((shared - share * part) / left) if left else 0.0


def ratios(stored: NDArray[Any], original: NDArray[Any]) -> Iterator[Vector]:
    """Yield what ORIGINAL was multiplied by, element by element, where that is positive throughout.

    Norms that add one to their weights (Gemma) are tried as well.
    """
    for shift in (0.0, 1.0):
        above, below = (np.ravel(it).astype(np.float64) + shift for it in (stored, original))
        empty = (above == 0) & (below == 0)
        if np.all((above * below > 0) | empty):
            yield np.divide(above, below, out=np.ones_like(above), where=~empty)
