"""Names of dtypes: one table for safetensors codes, numpy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

# safetensors code -> numpy dtype, in little-endian byte order as on disk.
NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
CODE: Final[dict[np.dtype[Any], str]] = {dtype: code for code, dtype in NUMPY.items()}
FLOATS: Final = frozenset({"F16", "F32", "F64", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"})


def dtype_of(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Return DTYPE, a safetensors code, a name (bfloat16 and float8 included) or a dtype of numpy.

    >>> dtype_of("bfloat16").itemsize, dtype_of("U8").name
    (2, 'uint8')
    """
    if isinstance(dtype, str):
        return NUMPY[dtype] if dtype in NUMPY else np.dtype(getattr(ml_dtypes, dtype, dtype))
    return dtype


def unit_roundoff(name: str) -> float:
    """Return u, half the spacing of floating-point numbers at 1 (Higham 2002, section 2.1).

    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return float(ml_dtypes.finfo(dtype_of(name)).eps) / 2  # type: ignore[no-untyped-call]


@cache
def largest(name: str) -> float:
    """Return the largest finite number of the floating-point dtype NAME.

    >>> largest("float16")
    65504.0
    """
    return float(ml_dtypes.finfo(dtype_of(name)).max)  # type: ignore[no-untyped-call]


def neighbours(
    found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], reach: int
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the numbers up to REACH last bits beside FOUND, the nearest to EXACT first."""
    side = np.where(exact >= found.astype(np.float64), np.inf, -np.inf)
    ends = side.astype(found.dtype), (-side).astype(found.dtype)
    moved = [found, found]
    for _ in range(reach):
        for at, end in enumerate(ends):
            moved[at] = np.nextafter(moved[at], end)
            yield moved[at]
