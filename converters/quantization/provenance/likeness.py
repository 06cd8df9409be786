"""A quantized weight compared with a dense one: nearest codes, distance, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checkpoints import Checkpoint
from ...common.arrays import same_bits
from ...common.dtypes import unit_roundoff
from ...values import Array
from ..codebooks import CODES, GLOBAL, SCALES
from ..mlx import Dtype, Parts, by_mlx, dequantize, quantize, row_blocks
from ..packing import unpack
from ..scheme import Scheme
from ..view import Dequantized
from .scaling import Blocks, Fit, Vector, fit

Table = NDArray[np.float32]

SAME: Final = 0.98  # of the codes: other roundings and other hardware leave as many
SCALED: Final = 0.9  # the scales of columns are found again from values that were rounded
# Times our own distance. mlx-lm's GPTQ was at 1.1 to 2.7 wherever it had more tokens than columns;
# a model of another seed is at 4 with 2 bits and at 18 with 4.
FAR: Final = 3.0
WORTH: Final = 0.9  # a scaling that brings less than this is none
TIE: Final = 0.02  # of a step: how near the middle a code may be chosen either way


class Likeness(NamedTuple):
    """What was measured of one weight.

    Attributes:
        codes_equal: share of the codes that MLX gives for the dense weight.
        nearest: share of the values to which the dense one is rounded on the stored grid.
        distance: ``||quantized - dense|| / ||quantized||``.
        expected: the same for MLX's own rounding of the dense weight.
    """

    codes_equal: float
    nearest: float
    distance: float
    expected: float

    @property
    def explained(self) -> bool:
        """Whether the codes are the dense one's, whatever the scales are."""
        return max(self.codes_equal, self.nearest) >= SAME and not self.far

    @property
    def rounded(self) -> bool:
        """Whether the weight is the dense one rounded on the grid that is stored."""
        return self.nearest >= SAME and not self.far

    @property
    def far(self) -> bool:
        """Whether the distance is more than any recipe makes."""
        return not self.distance <= FAR * self.expected  # NaN is far


@dataclass
class Sums:
    """What :class:`Likeness` is computed from, added up over a weight."""

    size: int = 0
    equal: int = 0
    nearest: int = 0
    squares: Vector = field(default_factory=lambda: np.zeros(4))

    def add(self, ours: Table, quantized: Table, original: Table) -> None:
        """Add rows of three weights: our own rounding, the stored one, the dense one."""
        pairs = ((quantized, original), (ours, original))
        self.squares[:2] += [_square(one - other) for one, other in pairs]
        self.squares[2:] += [_square(quantized), _square(ours)]

    def result(self) -> Likeness:
        """Return the figures."""
        with np.errstate(divide="ignore", invalid="ignore"):
            distance, expected = np.sqrt(self.squares[:2] / self.squares[2:])
        size = max(self.size, 1)
        return Likeness(self.equal / size, self.nearest / size, float(distance), float(expected))


def _square(values: Table) -> float:
    return float(np.vdot(values, values))


class Pair:
    """A quantized weight and a dense one of the same shape, read a few rows at a time.

    The leading axes of experts are taken one by one, for each has scales of its own.
    """

    def __init__(self, parts: Parts, scheme: Scheme, original: Array, dtype: Dtype) -> None:
        self.parts, self.scheme, self.original, self.dtype = parts, scheme, original, dtype
        self._scales = {"global_scale": True} if "global_scale" in parts else {}

    def ours(self) -> dict[str, Array]:
        """Return what MLX makes of the dense weight by the same scheme."""
        return quantize(self.original, self.scheme, self.dtype, **self._scales)

    def requantized(self, ours: Parts) -> bool:
        """Whether the weight is, byte for byte, OURS."""
        return all(same_bits(ours[part], self.parts[part]) for part in self.parts)

    def searched(self) -> bool:
        """Whether it is, byte for byte, what ``weighbridge quantize`` makes of the dense weight."""
        if self._scales:
            return False
        from ..search import encode  # compiled with numba, which the core does without

        values = self.original.astype(np.float32)
        return self.requantized(encode(values, self.scheme, self.dtype))

    def likeness(self, ours: Parts) -> Likeness:
        """Measure the weight; OURS is the dense one as MLX quantizes it."""
        sums, bits = Sums(), self.scheme.bits
        for index in np.ndindex(self.original.shape[:-2]):
            theirs, own, original = _at(self.parts, index), _at(ours, index), self.original[index]
            for rows in row_blocks(*original.shape):
                stored, made = _at(theirs, rows), _at(own, rows)
                wide = original[rows].astype(np.float32)
                codes = unpack(stored["weight"], bits)
                sums.size += codes.size
                sums.equal += int(np.count_nonzero(codes == unpack(made["weight"], bits)))
                sums.nearest += _nearest(stored, codes, wide, self.scheme)
                scheme = self.scheme
                sums.add(dequantize(made, scheme), dequantize(stored, scheme), wide)
        return sums.result()

    def matrices(self) -> Iterator[Blocks]:
        """Yield what reads each matrix of the two weights, a few rows at a time."""
        for index in np.ndindex(self.original.shape[:-2]):
            theirs, original = _at(self.parts, index), self.original[index]

            def blocks(
                theirs: Parts = theirs, original: Array = original
            ) -> Iterator[tuple[slice, Table, Table]]:
                for rows in row_blocks(*original.shape):
                    wide = original[rows].astype(np.float32)
                    yield rows, dequantize(_at(theirs, rows), self.scheme), wide

            yield blocks

    def dequantized(self) -> bool:
        """Whether the dense weight is the quantized one's values, rounded to its dtype once or by MLX."""
        dtype = self.original.dtype
        once = all(
            np.array_equal(values.astype(dtype).astype(np.float32), wide)
            for blocks in self.matrices()
            for _, values, wide in blocks()
        )
        if once or "global_scale" in self.parts:  # which mlx-lm's own dequantization does not know
            return once
        return np.array_equal(by_mlx(self.parts, self.scheme).astype(dtype), self.original)

    def scalings(self) -> list[Fit]:
        """Return for each matrix the scales that bring the dense one nearest to the quantized."""
        rows, columns = self.original.shape[-2:]
        return [fit(blocks, (rows, columns)) for blocks in self.matrices()]

    def scaled(self, scalings: Sequence[Fit]) -> Pair:
        """Return the pair with the dense weight multiplied by SCALINGS."""
        rows = np.stack([it.rows for it in scalings]).astype(np.float32)
        columns = np.stack([it.columns for it in scalings]).astype(np.float32)
        shape = self.original.shape
        wide = self.original.reshape(-1, *shape[-2:]).astype(np.float32)
        wide *= rows[:, :, None]
        wide *= columns[:, None, :]
        return Pair(self.parts, self.scheme, wide.reshape(shape), self.dtype)


def pair_of(quantized: Dequantized, original: Checkpoint, name: str, dtype: Dtype = "U8") -> Pair:
    """Return the weight NAME of both; DTYPE is the model's where the scales have none of their own."""
    parts, scheme = quantized.parts(name), quantized.schemes[name]
    kept = parts["scales"].dtype if scheme.affine else dtype
    return Pair(parts, scheme, original.read(name), kept)


def _at(parts: Parts, place: tuple[int, ...] | slice) -> dict[str, Array]:
    """Return PARTS at PLACE; a scale of a whole matrix stays as it is for its rows."""
    whole = isinstance(place, slice)
    return {
        part: array if part == "global_scale" and whole else array[place]
        for part, array in parts.items()
    }


def _nearest(parts: Mapping[str, Array], codes: Array, dense: Table, scheme: Scheme) -> int:
    """Count the DENSE values that are rounded to CODES on the stored grid."""
    scales = parts["scales"]
    grouped = (*scales.shape, scheme.group_size)
    codes, dense = codes.reshape(grouped), dense.reshape(grouped)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if scheme.affine:
            return _nearest_on_line(codes, dense, scales, parts["biases"], scheme.bits)
        wide = SCALES[scheme.mode][scales][..., None] * _factor(parts)
        return _nearest_in_table(codes, dense / wide, CODES[scheme.mode])


def _factor(parts: Mapping[str, Array]) -> np.float32:
    return np.float32(parts["global_scale"] / GLOBAL if "global_scale" in parts else 1)


def _nearest_on_line(codes: Array, dense: Table, scales: Array, biases: Array, bits: int) -> int:
    top = (1 << bits) - 1
    places = (dense - biases.astype(np.float32)[..., None]) / scales.astype(np.float32)[..., None]
    apart = places - codes
    # MLX chooses codes by scales in float32 and stores these rounded: by up to so much of a step.
    loose = 0.5 + TIE + top * unit_roundoff(scales.dtype.name)
    near = (np.abs(apart) <= loose) | ((codes == 0) & (apart < 0)) | ((codes == top) & (apart > 0))
    return int(np.count_nonzero(near | ~np.isfinite(places)))


def _nearest_in_table(codes: Array, places: Table, table: Table) -> int:
    known = np.unique(table[np.isfinite(table)])
    middles = (known[1:] + known[:-1]) / 2
    # Near a middle either side will do: try both.
    found = [
        known[np.searchsorted(middles, places * factor)] for factor in (1 - TIE / 2, 1 + TIE / 2)
    ]
    values = table[codes]
    return int(np.count_nonzero((values == found[0]) | (values == found[1])))
