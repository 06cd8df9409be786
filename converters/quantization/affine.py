"""The affine codes that MLX's CPU chooses, bit for bit, in a quarter of its time or less.

The kernel (`mlx/backend/cpu/quantized.cpp`, `quantize`) goes through one number after the other. Here
each step is a loop of its own over some groups that the cache holds: such loops the compiler makes
work on several numbers at once. They run out of Python's lock, so that several threads take so many
times less.
"""

from __future__ import annotations

import math
from typing import Final

import ml_dtypes
import numpy as np

from ..values import Array
from .packing import OCTET, without_gaps
from .scheme import Scheme
from .search.kernels import compiled

BLOCK: Final = 1 << 18  # numbers at a time: next to no calls
TOGETHER: Final = 128  # groups: more leave the cache
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
SMALLEST: Final = np.float32(1e-7)  # scale
LEAST, MOST = np.int32(-(1 << 31)), np.int32((1 << 31) - 1)


def encode(values: Array, scheme: Scheme) -> dict[str, Array] | None:
    """Return the parts that ``mx.quantize`` makes of VALUES on a CPU; ``None`` if not all are finite.

    Args:
        values: shape ``(groups, group_size)``, float32, float16 or bfloat16, in C order.
        scheme: affine.

    Returns:
        ``weight``, uint32 words, a row for each group; ``scales`` and ``biases``, one of each in the
        dtype of VALUES.
    """
    groups, size = values.shape
    upper = values.dtype == BFLOAT16  # the upper half of a float32
    numbers = values.view(np.uint16) if upper else values.astype(np.float32).view(np.uint32)
    lines = np.empty((2, groups), np.float32)
    packed = np.empty((groups, size // OCTET), np.uint32 if scheme.bits <= 4 else np.uint64)
    if not _encode(numbers, np.uint32(16 if upper else 0), scheme.bits, lines, packed):
        return None
    with np.errstate(all="ignore"):
        scales, biases = (part.astype(values.dtype)[:, None] for part in lines)
    return {"weight": without_gaps(packed, scheme.bits), "scales": scales, "biases": biases}


@compiled
def _widened(numbers: Array, shift: np.uint32, wide: Array) -> None:
    """Put the bits of NUMBERS, which begin at SHIFT, into WIDE."""
    for group in range(numbers.shape[0]):
        for place in range(numbers.shape[1]):
            wide[group, place] = np.uint32(numbers[group, place]) << shift


@compiled
def _ordered(bits: np.int32) -> np.int32:
    """Return the BITS of a float32 as a number of the same order, and of such a number the bits."""
    return np.int32(bits ^ ((bits >> 31) & MOST))


@compiled
def _ends(wide: Array, ends: Array) -> None:
    """Put the least and the largest number of each group of WIDE into ENDS, all as bits, int32."""
    for group in range(wide.shape[0]):
        low, high = MOST, LEAST
        for place in range(wide.shape[1]):
            number = _ordered(wide[group, place])
            low, high = min(low, number), max(high, number)
        ends[0, group], ends[1, group] = _ordered(low), _ordered(high)


@compiled
def _line(low: np.float32, high: np.float32, top: np.float32) -> tuple[np.float32, np.float32]:
    """Return what the codes 0 to TOP of a group from LOW to HIGH mean, ``scale * code + bias``.

    Code 0 is the end with the larger magnitude, and the scale such that 0 is a multiple of it.
    """
    scale, edge = max((high - low) / top, SMALLEST), low
    if abs(low) <= abs(high):
        scale, edge = -scale, high
    steps = np.rint(edge / scale)
    if steps == 0:
        return scale, np.float32(0)
    return edge / steps, edge


@compiled
def _lines(ends: Array, top: np.float32, lines: Array) -> bool:
    """Put the line of each group into LINES; tell whether all groups are finite."""
    finite = True
    for group in range(ends.shape[1]):
        low, high = ends[0, group], ends[1, group]
        finite &= math.isfinite(high - low)
        lines[0, group], lines[1, group] = _line(low, high, top)
    return finite


@compiled
def _codes(values: Array, lines: Array, top: np.float32, codes: Array) -> None:
    """Put the code of each number of VALUES into CODES.

    None is below 0, one end being code 0; MLX cuts those off that are above the largest.
    """
    for group in range(values.shape[0]):
        scale, bias = lines[0, group], lines[1, group]
        for place in range(values.shape[1]):
            code = np.rint((values[group, place] - bias) / scale)
            codes[group, place] = np.int32(min(code, top))


@compiled
def _packed(codes: Array, bits: int, packed: Array) -> None:
    """Put each eight CODES of BITS into one number of PACKED, the first one lowest."""
    for group in range(packed.shape[0]):
        for octet in range(packed.shape[1]):
            word = np.uint64(0)
            for place in range(OCTET):
                code = np.uint64(codes[group, octet * OCTET + place])
                word |= code << np.uint64(bits * place)
            packed[group, octet] = word


@compiled
def _encode(numbers: Array, shift: np.uint32, bits: int, lines: Array, packed: Array) -> bool:
    """Put the lines of groups of NUMBERS and their codes into LINES and PACKED; stop if one is not finite."""
    top, size = np.float32((1 << bits) - 1), numbers.shape[1]
    wide, codes = np.empty((TOGETHER, size), np.uint32), np.empty((TOGETHER, size), np.int32)
    ends = np.empty((2, TOGETHER), np.int32)
    for start in range(0, numbers.shape[0], TOGETHER):
        some = slice(start, min(start + TOGETHER, numbers.shape[0]))
        count = some.stop - start
        _widened(numbers[some], shift, wide)
        _ends(wide.view(np.int32)[:count], ends)
        if not _lines(ends.view(np.float32)[:, :count], top, lines[:, some]):
            return False
        _codes(wide.view(np.float32)[:count], lines[:, some], top, codes)
        _packed(codes, bits, packed[some])
    return True
