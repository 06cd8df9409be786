"""Rounding from float64 to a narrower dtype, once."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..values import Array

NATIVE: Final = "efd"  # numpy's own float16, 32 and 64, which numpy rounds once


def round_once(values: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    """Return VALUES rounded to nearest, ties to even, in the floating-point DTYPE.

    ml_dtypes goes through float32 or float16 and so rounds twice. Here the rounding is done in
    float64, to a multiple of the spacing that DTYPE has at each value; the cast is exact then.

    >>> above_a_tie = np.array([1 + 2.0**-8 + 2.0**-40])
    >>> bfloat16 = np.dtype(ml_dtypes.bfloat16)
    >>> float(above_a_tie.astype(bfloat16)[0]), float(round_once(above_a_tie, bfloat16)[0])
    (1.0, 1.0078125)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are the caller's
        if dtype.char in NATIVE:
            return values.astype(dtype)
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        exponent = np.frexp(values)[1] - 1
        spacing = np.maximum(exponent, info.minexp) - info.nmant  # as a power of two
        rounded: Array = np.ldexp(np.rint(np.ldexp(values, -spacing)), spacing).astype(dtype)
        return rounded
