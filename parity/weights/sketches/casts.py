"""Hash a tensor at every dtype to which it is commonly cast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import xxhash

from ....converters.common.dtypes import CODE, FLOATS, NUMPY, unit_roundoff
from ....converters.values import Array

CLAMPED: Final = "F16 without zeros"  # float16 as coremltools writes it, see :func:`clamp`


def roundoff(code: str) -> float:
    """Return the unit roundoff of the dtype with safetensors code CODE; 0 for integers.

    >>> roundoff("BF16"), roundoff("I64")
    (0.00390625, 0.0)
    """
    return unit_roundoff(NUMPY[code].name) if code in FLOATS else 0.0


def fingerprint(array: Array) -> str:
    """Return the hash of ARRAY's bytes in C order.

    >>> fingerprint(np.arange(3)) == fingerprint(np.arange(6)[:3])
    True
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    return str(xxhash.xxh3_128_hexdigest(flat.view(np.uint8).data))


def clamp(array: Array) -> Array:
    """Return ARRAY in float16 as coremltools casts it: what would vanish keeps the least magnitude.

    Source: ``FP16ComputePrecision`` in coremltools 9, passes/defs/quantization.py.

    >>> clamp(np.array([1e-12, -1e-12, 0.0], np.float32)).tolist()
    [5.960464477539063e-08, -5.960464477539063e-08, 0.0]
    """
    half = cast(array, "F16")
    vanished = (half == 0) & (array != 0)
    return np.where(vanished, np.copysign(np.float16(2.0**-24), half), half)


def cast(array: Array, code: str) -> Array:
    """Return ARRAY rounded to the dtype with safetensors code CODE; overflow gives infinity.

    >>> cast(np.array([1e6], np.float32), "F16")
    array([inf], dtype=float16)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(NUMPY[code])


CASTS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "F32": lambda array: cast(array, "F32"),
    "BF16": lambda array: cast(array, "BF16"),
    "F16": lambda array: cast(array, "F16"),
    CLAMPED: clamp,
}


def casts(array: Array) -> dict[str, str]:
    """Return the hash of ARRAY at its own dtype and at each that it is commonly cast to."""
    own = CODE[array.dtype]
    hashes = {own: fingerprint(array)}
    if own in FLOATS:
        others = {code: make for code, make in CASTS.items() if code != own}
        hashes |= {code: fingerprint(make(array)) for code, make in others.items()}
    elif own in {"I64", "I32"}:
        hashes |= {code: fingerprint(cast(array, code)) for code in ("I64", "I32") if code != own}
    return hashes
