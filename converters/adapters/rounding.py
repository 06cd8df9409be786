"""Rounding from float64 to a narrower dtype, once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..values import Array


def round_once(values: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """Return VALUES rounded to nearest, ties to even, in DTYPE.

    ml_dtypes goes through float32 and so rounds twice. Rounding to odd on the way makes the second
    rounding the only one that counts (Boldo and Melquiond 2008, theorem 3).

    >>> import ml_dtypes
    >>> above_a_tie = np.array([1 + 2.0**-8 + 2.0**-40])
    >>> bfloat16 = np.dtype(ml_dtypes.bfloat16)
    >>> float(above_a_tie.astype(bfloat16)[0]), float(round_once(above_a_tie, bfloat16)[0])
    (1.0, 1.0078125)
    """
    with np.errstate(over="ignore"):
        if dtype.kind == "f":
            return values.astype(dtype)
        return _round_to_odd(values).astype(dtype)


def _round_to_odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return VALUES in float32: exact ones as they are, others with their last bit set."""
    nearest = values.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.uint32)
    bits -= (np.abs(back) > np.abs(values)).astype(np.uint32)  # towards zero
    bits |= ((back != values) & ~np.isnan(values)).astype(np.uint32)
    return nearest
