"""The affine codes that MLX's CPU chooses, bit for bit, in less than half of its time.

The kernel (`mlx/backend/cpu/quantized.cpp`, `quantize`) goes through one group after the other. Here
a block of groups is turned so that numpy works on all groups at once, in the cache, and out of
Python's lock: several threads take so many times less.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..values import Array
from .packing import OCTET, pack_pairs, without_gaps
from .scheme import Scheme
from .workspace import Room

Float32 = NDArray[np.float32]

BLOCK: Final = 1 << 18  # numbers at a time: as float32 half of a core's cache, next to no calls
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
SMALLEST: Final = np.float32(1e-7)  # scale
PAIRS: Final = OCTET // 2
UPPER: Final = np.uint32(0xFFFF0000)


class Line(NamedTuple):
    """What the codes of each group mean, ``scale * code + bias``, each of shape ``(groups,)``."""

    scale: Float32
    bias: Float32


def encode(values: Array, scheme: Scheme, room: Room) -> dict[str, Array] | None:
    """Return the parts that ``mx.quantize`` makes of VALUES on a CPU; ``None`` if not all are finite.

    Args:
        values: shape ``(groups, group_size)``, float32, float16 or bfloat16, in C order.
        scheme: affine.
        room: for arrays in between; several calls of one thread may share it.

    Returns:
        ``weight``, uint32 words, a row for each group; ``scales`` and ``biases``, one of each in the
        dtype of VALUES.
    """
    top = np.float32((1 << scheme.bits) - 1)
    with np.errstate(all="ignore"):
        spread = _spread(values, room)
        low, high = _extreme(spread, np.minimum, room), _extreme(spread, np.maximum, room)
        if not np.isfinite(high - low).all():
            return None
        line = _line(low, high, top)
        codes = _codes(spread, line, scheme.bits, room)
        scales, biases = (part.astype(values.dtype)[:, None] for part in line)
    return {"weight": _words(codes, scheme.bits, room), "scales": scales, "biases": biases}


def _spread(values: Array, room: Room) -> Float32:
    """Return VALUES as float32, ``(2, columns / 8, groups * 4)``: those of even and of odd columns.

    Four neighbours of the last axis are of one group, so that codes of eight columns lie side by side.
    """
    groups, columns = values.shape
    eight = np.dtype(np.complex128 if values.itemsize == 2 else f"V{OCTET * values.itemsize}")
    turned = room("turned", (columns // OCTET, groups), eight)
    np.copyto(turned, values.view(eight).T)
    spread = room("spread", (2, columns // OCTET, groups * PAIRS), np.float32)
    if values.dtype == BFLOAT16:  # the upper half of a float32
        pairs, bits = turned.view(np.uint32), spread.view(np.uint32)
        np.left_shift(pairs, np.uint32(16), out=bits[0])
        np.bitwise_and(pairs, UPPER, out=bits[1])
    else:
        plain = turned.view(values.dtype)
        spread[0], spread[1] = plain[:, 0::2], plain[:, 1::2]
    return spread


def _extreme(spread: Float32, of: np.ufunc, room: Room) -> Float32:
    """Return the smallest or largest number of each group, as OF says."""
    four = of.reduce(spread.reshape(-1, spread.shape[-1]), axis=0)
    turned = room("four", (PAIRS, four.size // PAIRS), np.float32)
    np.copyto(turned, four.reshape(-1, PAIRS).T)
    found: Float32 = of.reduce(turned, axis=0)
    return found


def _line(low: Float32, high: Float32, top: np.float32) -> Line:
    """Return where the codes 0 to TOP lie for groups from LOW to HIGH.

    Code 0 is the end with the larger magnitude, and the scale such that 0 is a multiple of it.
    """
    scale = np.maximum((high - low) / top, SMALLEST)
    sizes = np.abs(low), np.abs(high)
    scale = -np.copysign(scale, sizes[1] - sizes[0])  # that is 0 only where both are the same
    edge = np.copysign(np.maximum(*sizes), low + high)  # in a third of the time of a choice
    steps = np.rint(edge / scale)
    none = steps == 0
    return Line(np.where(none, scale, edge / steps), np.where(none, np.float32(0), edge))


def _codes(spread: Float32, line: Line, bits: int, room: Room) -> NDArray[np.uint8]:
    """Return the code of each number of SPREAD, which is overwritten.

    Before they are cut off codes are at least 0, one end being code 0, and at most one too many,
    for MLX makes no scale smaller by more than that.
    """
    scale, bias = (np.repeat(part, PAIRS) for part in line)
    spread -= bias
    spread /= scale
    np.rint(spread, out=spread)
    top = (1 << bits) - 1
    codes = room("codes", spread.shape, np.uint8)
    if bits == 8:  # one too many is more than a byte
        np.minimum(spread, np.float32(top), out=spread)
    np.copyto(codes, spread, casting="unsafe")
    tops = room("tops", spread.shape, np.uint8)
    tops.fill(top)  # with an array numpy takes a tenth of the time that it does with a number
    return np.minimum(codes, tops, out=codes)


def _words(codes: NDArray[np.uint8], bits: int, room: Room) -> NDArray[np.uint32]:
    """Return CODES of the layout of ``_spread`` as words, a row for each group."""
    packed = pack_pairs(codes[0], codes[1], bits)  # (octets, groups): eight codes each
    octets, groups = packed.shape
    back = room("back", (groups, octets), packed.dtype)
    np.copyto(back, packed.T)
    return without_gaps(back, bits)
