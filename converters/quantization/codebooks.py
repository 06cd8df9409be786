"""What a code means where it is a tiny floating-point number: E2M1 and E4M3, with their scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..values import Array

Table = NDArray[np.float32]

# The largest E4M3 times the largest E2M1: a tensor's global scale is its largest absolute value,
# so that this product stands for it (`mlx/backend/cpu/quantized.cpp`, `fp_dequantize`).
GLOBAL: Final = 448.0 * 6.0


def _values(dtype: type[Any], count: int) -> Table:
    codes: Array = np.arange(count, dtype=np.uint8).view(dtype)
    return codes.astype(np.float32)


def _powers() -> Table:
    """Return ``2**(code - 127)``; 255 is infinity as in MLX, where the standard has NaN."""
    return np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.inf))


# mode -> what each code is worth; mode -> what each byte of the scales is worth
CODES: Final[Mapping[str, Table]] = {
    "mxfp4": _values(ml_dtypes.float4_e2m1fn, 16),
    "mxfp8": _values(ml_dtypes.float8_e4m3fn, 256),
    "nvfp4": _values(ml_dtypes.float4_e2m1fn, 16),
}
SCALES: Final[Mapping[str, Table]] = {
    "mxfp4": _powers(),
    "mxfp8": _powers(),
    "nvfp4": _values(ml_dtypes.float8_e4m3fn, 256),
}


def gaps(mode: str) -> Table:
    """Return for each code of MODE how far the next larger magnitude is; the last gap is repeated.

    >>> gaps("mxfp4").tolist()[:8]
    [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0]
    """
    sizes = np.abs(CODES[mode])
    known = np.unique(sizes[np.isfinite(sizes)])
    apart = np.diff(known)
    place = np.searchsorted(known, np.nan_to_num(sizes, nan=known[-1]))
    return np.append(apart, apart[-1])[place]
