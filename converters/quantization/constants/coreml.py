"""Core ML's constants for a quantized weight: ``constexpr_blockwise_shift_scale``, and tables before it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedError
from ...values import Array
from .. import Blocks
from ..codebooks import CODES, SCALES
from ..rounding import round_once
from .zeros import whole, zeros_of

HELD: Final = {2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}  # bits of uint4 and uint8
TABLED: Final = (2, 3)  # bits of codes whose tables for each group are small


class Shift(NamedTuple):
    """``scale * (data - offset)`` for each block of columns.

    Attributes:
        data: uint8, below ``2**bits``, shape ``(rows, columns)``; or what a table makes of indices.
        bits: of data and offset, 4 or 8.
        scale: float16 or float32, shape ``(rows, groups)``, positive.
        offset: uint8, likewise.
        error: the largest distance of a value from the weight's, in steps.
    """

    data: Array
    bits: int
    scale: Array
    offset: Array
    error: float

    def values(self) -> NDArray[np.float64]:
        """Return what the constants stand for in float64, shape ``(rows, columns)``."""
        grouped = self.data.reshape(*self.scale.shape, -1).astype(np.float64)
        apart = grouped - self.offset.astype(np.float64)[..., None]
        worth = apart * self.scale.astype(np.float64)[..., None]
        found: NDArray[np.float64] = worth.reshape(self.data.shape)
        return found


class Table(NamedTuple):
    """``lut[index]`` for each group, and then ``scale`` times it, where there is a scale.

    Attributes:
        indices: uint8, below the entries of a table, shape ``(rows, columns)``.
        lut: float16, shape ``(rows, groups, entries)``, or ``(1, 1, entries)`` for all.
        scale: float16 or float32, shape ``(rows, groups)``; ``None`` where the table has the values.
        error: the largest distance of a value from the weight's, in steps of its group.
    """

    indices: Array
    lut: Array
    scale: Array | None
    error: float

    def values(self) -> NDArray[np.float64]:
        """Return what the constants stand for in float64, shape ``(rows, columns)``."""
        rows, columns = self.indices.shape
        groups = self.lut.shape[1] if self.scale is None else self.scale.shape[1]
        index = self.indices.reshape(rows, groups, -1)
        lut = np.broadcast_to(self.lut.astype(np.float64), (rows, groups, self.lut.shape[-1]))
        worth = np.take_along_axis(lut, index.astype(np.int64), axis=-1)
        if self.scale is not None:
            worth = worth * self.scale.astype(np.float64)[..., None]
        found: NDArray[np.float64] = worth.reshape(rows, columns)
        return found


def shift(blocks: Blocks) -> Shift:
    """Return the constants of ``constexpr_blockwise_shift_scale`` for BLOCKS, rows of an affine weight.

    Scales are made positive, codes of the others counted from the other end: whether the op takes
    negative ones where it runs is not known.

    Raises:
        UnsupportedError: it is not affine, or zero is no code of a group.
    """
    if not blocks.scheme.affine:
        raise UnsupportedError(f"{blocks.scheme} has no linear codes; take a table")
    found, bits = zeros_of(blocks), HELD[blocks.scheme.bits]
    offset, error = whole(found.zeros, (1 << bits) - 1)
    scale = found.scales
    scale = scale if scale.dtype == np.float16 else scale.astype(np.float32)
    return Shift(found.codes, bits, scale, offset, error)


def table(blocks: Blocks) -> Table:
    """Return a table of values, and for tiny floating-point numbers a scale, for rows of a weight.

    Raises:
        UnsupportedError: the codes are affine and of too many bits, or a value is no number.
    """
    return _affine(blocks) if blocks.scheme.affine else _floats(blocks)


def _affine(blocks: Blocks) -> Table:
    if blocks.scheme.bits not in TABLED:
        raise UnsupportedError(f"{blocks.scheme}: a table for each group is larger than its codes")
    scales, biases = (blocks.parts[it].astype(np.float64)[..., None] for it in ("scales", "biases"))
    exact = scales * np.arange(1 << blocks.scheme.bits) + biases
    lut = round_once(exact, np.dtype(np.float16))
    if not np.isfinite(lut).all():
        raise UnsupportedError("values are beyond float16, which a table has")
    gap = np.abs(lut.astype(np.float64) - exact)
    steps = np.divide(gap, np.abs(scales), out=np.zeros_like(gap), where=gap > 0)
    return Table(blocks.codes(), np.array(lut), None, float(steps.max(initial=0.0)))


def _floats(blocks: Blocks) -> Table:
    mode, codes = blocks.scheme.mode, blocks.codes()
    if not np.isfinite(CODES[mode][codes]).all() or "global_scale" in blocks.parts:
        raise UnsupportedError("codes that are no numbers, or a global scale, have no table")
    scale = SCALES[mode][blocks.parts["scales"]]
    narrow = scale.astype(np.float16)
    lut = np.nan_to_num(CODES[mode], nan=0.0).astype(np.float16)[None, None]
    return Table(codes, lut, narrow if np.array_equal(narrow, scale) else scale, 0.0)
