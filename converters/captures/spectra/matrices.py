"""What Fourier transforms multiply by, in float64: Cooley and Tukey 1965, one step.

A transform of n = a b numbers is b transforms of a numbers, turned by angles, and a of b numbers: sums of a and b terms
in the place of n, which err about as little as a fast transform's, where sums of n terms do not.
"""

from __future__ import annotations

import numpy as np

from ...values import Array


def factors(count: int) -> tuple[int, int]:
    """Return two numbers whose product is COUNT, as near to each other as there are, the larger one first.

    >>> factors(400), factors(512), factors(7)
    ((20, 20), (32, 16), (7, 1))
    """
    small = next(it for it in range(int(count**0.5), 0, -1) if count % it == 0)
    return count // small, small


def turns(count: float, rows: float, columns: float) -> Array:
    """Return cosines and sines of minus a COUNTth of a turn times row and column, shape (2, ROWS, COLUMNS).

    >>> turns(4, 2, 2).round(3).tolist()
    [[[1.0, 1.0], [1.0, 0.0]], [[-0.0, -0.0], [-0.0, -1.0]]]
    """
    places = np.arange(int(rows))[:, None] * np.arange(int(columns)) % int(count)
    angles = 2 * np.pi * places / count
    return np.stack([np.cos(angles), -np.sin(angles)])


def turns_of_real(count: float) -> Array:
    """Return what makes the transform of COUNT real numbers: rows of real parts, then of imaginary ones."""
    return np.concatenate([*turns(count, count, count)])


def turns_of_pairs(count: float) -> Array:
    """Return what makes the transform of COUNT complex numbers, real parts before imaginary ones on both sides."""
    real, imaginary = turns(count, count, count)
    return np.block([[real, -imaginary], [imaginary, real]])


def cosines(count: float, size: float, middle: float) -> Array:
    """Return a window of SIZE numbers, of a cosine of COUNT numbers about MIDDLE: Hann's of 0.5, Hamming's of 0.54.

    >>> cosines(4, 4, 0.5).round(3).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    wave = np.cos(2 * np.pi * np.arange(int(size)) / max(count, 1))
    return np.asarray(middle - (1 - middle) * wave)


def turns_between(part: float, count: float, rows: float, columns: float) -> Array:
    """Return the cosines of ``turns``, or its sines where PART is 1."""
    return np.asarray(turns(count, rows, columns)[int(part)])
