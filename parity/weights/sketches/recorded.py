"""Is a weight the one that was recorded? Answered across dtypes, without the recorded values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

import numpy as np

from ....converters.checkpoints import Checkpoint
from ....converters.common.dtypes import CODE
from ....converters.quantization import Dequantized
from ....converters.values import Array
from .casts import casts, roundoff
from .sketch import projections

QUANTIZED: Final = 0.5  # of a weight's size: 4 bits move it by a tenth, 2 bits by less than a half
ARITHMETIC: Final = 4.0  # roundings that carrying by arithmetic, rather than by moving, may cost


class Likeness(Enum):
    """What a weight is to a recorded one."""

    SAME = "the same numbers, or the same after rounding the wider of the two"
    UNCLEAR = "not the same numbers, and no further away than rounding explains"
    OTHER = "another weight"


def weight_records(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what tells the weights NAMES of CHECKPOINT in other dtypes, as JSON values by name.

    The hashes at every dtype to which weights are cast, and 16 random projections, from which a
    distance is estimated. Quantized weights are left out: their codes say what they are.
    """
    quantized = checkpoint.schemes if isinstance(checkpoint, Dequantized) else {}
    return {
        name: weight_record(checkpoint.read(name))
        for name in names
        if name in checkpoint.headers and name not in quantized
    }


def weight_record(array: Array) -> dict[str, Any]:
    """Return the record of one weight.

    >>> sorted(weight_record(np.ones((2, 3), np.float32))["hashes"])
    ['BF16', 'F16', 'F16 without zeros', 'F32']
    """
    return {
        "dtype": CODE[array.dtype],
        "hashes": casts(array),
        "projections": projections(array).tolist(),
    }


def likeness(array: Array, record: Mapping[str, Any], *, exact: bool = True) -> Likeness:
    """Say what ARRAY is to the weight of RECORD.

    Args:
        array: the weight as it is now.
        record: what :func:`weight_record` returned of the other.
        exact: whether ARRAY was carried to where it is by moving numbers, not by arithmetic.

    >>> whole = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    >>> likeness(whole.astype(np.float16), weight_record(whole)).name
    'SAME'
    >>> likeness(whole + np.float32(1e-6), weight_record(whole)).name
    'OTHER'
    """
    here, there, hashes = CODE[array.dtype], record["dtype"], casts(array)
    if any(hashes.get(code, here) == record["hashes"].get(code) for code in (here, there)):
        return Likeness.SAME
    if here == there and exact:
        return Likeness.OTHER
    rounding = max(roundoff(here), roundoff(there))
    limit = rounding if exact else ARITHMETIC * rounding
    return Likeness.OTHER if distance(array, record) > limit else Likeness.UNCLEAR


def quantized_likeness(array: Array, record: Mapping[str, Any]) -> Likeness:
    """Say what ARRAY, the values of a quantized weight, is to the dense weight of RECORD."""
    return Likeness.OTHER if distance(array, record) > QUANTIZED else Likeness.UNCLEAR


def distance(array: Array, record: Mapping[str, Any]) -> float:
    """Estimate how far ARRAY is from the weight of RECORD, in parts of the size of the latter."""
    there = np.array(record["projections"], np.float64)
    return float(np.linalg.norm(projections(array) - there) / (np.linalg.norm(there) or 1.0))
