"""Groups of values in steps of their plain grids, the codes nearest to them, and lines fitted to codes.

A group is a column here, arrays are ``(group, groups)``: sums over a group add rows, which numpy does
at full width. Counted in steps from the middle of the codes, every group looks alike, and float32 is
fine enough.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...values import Array
from ..workspace import Room

Float64 = NDArray[np.float64]

FINEST: Final = 1e-7  # of a value: float32 cannot tell narrower groups from constants
NARROWEST: Final = 1e-30  # where one over the width of a group is still a float32


class Line(NamedTuple):
    """``scales * code + biases`` of each group, ``(groups,)`` each, in steps or in the values' own."""

    scales: Float64
    biases: Float64

    def where(self, chosen: Array, other: Line) -> Line:
        """Return this line for the groups that are CHOSEN, and the OTHER one for the rest."""
        return Line(*(np.where(chosen, *pair) for pair in zip(self, other, strict=True)))

    def at(self, rows: Array) -> Line:
        """Return of lines for several grids, ``(grids, groups)``, that of the grid in ROWS."""
        return Line(*(np.take_along_axis(numbers, rows[None], 0)[0] for numbers in self))


class Sums(NamedTuple):
    """Sums over each group, every element as often as it is important: of codes, of codes times ..."""

    codes: Float64
    squares: Float64  # ... themselves
    products: Float64  # ... values


class Groups:
    """Values of some groups in steps of their plain grids, from least to largest value.

    Args:
        values: float32, ``(groups, group)``.
        bits: of a code.
        importance: of the squared error of each element, float32, ``(group, groups)``; all alike
            if ``None``.
        room: where arrays are kept.
        zero: "integer" if the plain grid is to reach zero, "symmetric" if as far below it as above.

    Attributes:
        units: the values, float32, ``(group, groups)``, from ``-middle`` to ``top - middle``.
        top: the largest code.
        density: steps in a unit of the values.
    """

    def __init__(
        self,
        values: Array,
        bits: int,
        room: Room,
        importance: Array | None = None,
        zero: str | None = None,
    ) -> None:
        self.top, self.middle, self.room = 2**bits - 1, 2.0 ** (bits - 1), room
        self.units = room.copy("units", values.T, np.float32)
        self.importance = importance
        self.least, self.largest = _ends(self.units, zero)
        low, high = self.least.astype(np.float64), self.largest.astype(np.float64)
        narrowest = np.maximum(np.abs(low), np.abs(high)) * FINEST
        self.density = self.top / np.maximum(high - low, np.maximum(narrowest, NARROWEST))
        self.units -= self.least
        self.units *= self.density.astype(np.float32)
        self.units -= np.float32(self.middle)
        self._count, self._values = self._totals()

    def _totals(self) -> tuple[Float64 | int, Float64]:
        if self.importance is None:
            return len(self.units), self.units.sum(0).astype(np.float64)
        count = self.importance.sum(0).astype(np.float64)
        return count, _dot(self.importance, self.units).astype(np.float64)

    @property
    def zero(self) -> Float64:
        """Where zero lies, in steps."""
        place: Float64 = -self.least * self.density - self.middle
        return place

    def in_steps(self, line: Line) -> Line:
        """Return LINE, of the values' own numbers, in steps."""
        with np.errstate(invalid="ignore"):  # infinite numbers are never chosen
            biases = (line.biases - self.least) * self.density - self.middle
            return Line(line.scales * self.density, biases)

    def in_values(self, line: Line) -> Line:
        """Return LINE, in steps, in the values' own numbers."""
        biases = (line.biases + self.middle) / self.density + self.least
        return Line(line.scales / self.density, biases)

    def biases(self, scales: Float64, begins: Float64) -> Float64:
        """Return the biases of least squares for SCALES, both in the values' own numbers.

        They fit the codes by SCALES and by the biases that are BEGINS, in steps.
        """
        steps = scales * self.density
        codes = self._weighted(self.codes(Line(steps, begins))).sum(0)
        with np.errstate(invalid="ignore"):  # of infinite scales, which are never chosen
            line = Line(steps, (self._values - steps * codes) / self._count)
        return self.in_values(line).biases

    def codes(self, line: Line) -> Array:
        """Return the codes nearest to the values by LINE, whole numbers in float32."""
        steps = np.where(line.scales == 0, np.inf, line.scales)
        codes = self.room("codes", self.units.shape, np.float32)
        np.subtract(self.units, line.biases.astype(np.float32), out=codes)
        codes *= (1 / steps).astype(np.float32)
        return self.rounded(codes)

    def rounded(self, codes: Array) -> Array:
        """Round CODES in place to those there are, and return them."""
        np.rint(codes, out=codes)
        return np.clip(codes, 0, self.top, out=codes)

    def errors(self, line: Line) -> Array:
        """Return the squared error of each group, in steps, by LINE and the codes nearest by it."""
        rest = self.codes(line)
        rest *= line.scales.astype(np.float32)
        rest += line.biases.astype(np.float32)
        rest -= self.units
        errors = _dot(self._weighted(rest), rest)
        errors[~np.isfinite(errors)] = np.inf
        return errors

    def sums(self, codes: Array) -> tuple[Array, Array, Array]:
        """Return :class:`Sums` of CODES, still in float32."""
        weighted = self._weighted(codes)
        return weighted.sum(0), _dot(weighted, codes), _dot(weighted, self.units)

    def fitted(self, sums: Sums) -> tuple[Line, Float64]:
        """Return the line of least squares through codes, and by how much it lowers the error."""
        count, total = self._count, self._values
        spread = sums.squares - sums.codes**2 / count
        shared = sums.products - sums.codes * total / count
        scales, gain = _ratio(shared, spread)
        return Line(scales, (total - scales * sums.codes) / count), gain

    def fitted_through(self, zeros: Float64, sums: Sums) -> tuple[Line, Float64]:
        """Return the same of lines by which the code ZEROS of each group is worth zero."""
        count, total, origin = self._count, self._values, self.zero
        spread = sums.squares - 2 * zeros * sums.codes + count * zeros**2
        shared = sums.products - origin * sums.codes - zeros * (total - count * origin)
        scales, gain = _ratio(shared, spread)
        scales = np.abs(scales)
        return Line(scales, origin - zeros * scales), gain

    def sums_by(self, line: Line) -> Sums:
        """Return the sums of the codes nearest by LINE."""
        return Sums(*(total.astype(np.float64) for total in self.sums(self.codes(line))))

    def _weighted(self, array: Array) -> Array:
        if self.importance is None:
            return array
        weighted = self.room("weighted", array.shape, np.float32)
        return np.multiply(array, self.importance, out=weighted)


def _ends(values: Array, zero: str | None) -> tuple[Array, Array]:
    """Return from where to where the grid of each group reaches."""
    least, largest = values.min(0), values.max(0)
    if zero is None:
        return least, largest
    if zero == "integer":
        return np.minimum(least, 0), np.maximum(largest, 0)
    farthest = np.maximum(-least, largest)
    return -farthest, farthest


def _ratio(shared: Float64, spread: Float64) -> tuple[Float64, Float64]:
    """Return the slopes SHARED / SPREAD, 1 where there is none, and what they gain."""
    sloped = spread > 0
    scales = np.where(sloped, shared, 1) / np.where(sloped, spread, 1)
    return scales, np.where(sloped, scales * shared, 0)


def _dot(first: Array, second: Array) -> Array:
    found: Array = np.einsum("gn,gn->n", first, second)
    return found
