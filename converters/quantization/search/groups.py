"""Groups of values in steps of their plain grids, the codes nearest to them, and lines fitted to codes.

Arrays of elements are ``(groups, group)``. Counted in steps from the middle of the codes, every group
looks alike, and float32 is fine enough.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...values import Array
from ..workspace import Room
from . import kernels

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
        importance: of the squared error of each element, float32, ``(groups, group)``; all alike
            if ``None``.
        room: where arrays are kept.
        zero: "integer" if the plain grid is to reach zero, "symmetric" if as far below it as above.

    Attributes:
        units: the values, float32, ``(groups, group)``, from ``-middle`` to ``top - middle``.
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
        values = np.ascontiguousarray(values)
        self.importance = None if importance is None else np.ascontiguousarray(importance)
        self.least, self.largest = _ends(values, zero)
        low, high = self.least.astype(np.float64), self.largest.astype(np.float64)
        narrowest = np.maximum(np.abs(low), np.abs(high)) * FINEST
        self.density = self.top / np.maximum(high - low, np.maximum(narrowest, NARROWEST))
        self.units = room("units", values.shape, np.float32)
        steps = self.density.astype(np.float32)
        kernels.in_steps(values, self.least, steps, np.float32(self.middle), self.units)
        self._count, self._values = (np.empty(len(values), np.float64) for _ in range(2))
        kernels.totals(self.units, self.importance, self._count, self._values)

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
        codes = self.sums_by(Line(steps, begins)).codes
        with np.errstate(invalid="ignore"):  # of infinite scales, which are never chosen
            line = Line(steps, (self._values - steps * codes) / self._count)
        return self.in_values(line).biases

    def codes(self, line: Line) -> Array:
        """Return the codes nearest to the values by LINE, uint8 ``(groups, group)``."""
        codes = self.room("codes", self.units.shape, np.uint8)
        kernels.codes(self.units, *_factors(line), np.float32(self.top), codes)
        return codes

    def errors(self, line: Line) -> Array:
        """Return the squared error of each group, in steps, by LINE and the codes nearest by it."""
        errors = np.empty(len(self.units), np.float32)
        scales, biases = (numbers.astype(np.float32) for numbers in line)
        top = np.float32(self.top)
        kernels.errors(self.units, self.importance, scales, biases, top, errors)
        errors[~np.isfinite(errors)] = np.inf
        return errors

    def best_of(self, grids: Array) -> Line:
        """Return the line of least squares through the codes of that grid which fits them best.

        Args:
            grids: float32, ``(grids, 2)``: one over the scale, and the bias, of each, in steps.
        """
        sums = kernels.best_grid(
            self.units, self.importance, grids, self._count, self._values, np.float32(self.top)
        )
        return self.fitted(Sums(*sums.astype(np.float64)))

    def fitted(self, sums: Sums) -> Line:
        """Return the line of least squares through codes."""
        count, total = self._count, self._values
        spread = sums.squares - sums.codes**2 / count
        shared = sums.products - sums.codes * total / count
        scales = _ratio(shared, spread)
        return Line(scales, (total - scales * sums.codes) / count)

    def fitted_through(self, zeros: Float64, sums: Sums) -> Line:
        """Return the same of lines by which the code ZEROS of each group is worth zero."""
        count, total, origin = self._count, self._values, self.zero
        spread = sums.squares - 2 * zeros * sums.codes + count * zeros**2
        shared = sums.products - origin * sums.codes - zeros * (total - count * origin)
        scales = np.abs(_ratio(shared, spread))
        return Line(scales, origin - zeros * scales)

    def sums_by(self, line: Line) -> Sums:
        """Return the sums of the codes nearest by LINE."""
        sums = np.empty((3, len(self.units)), np.float32)
        top = np.float32(self.top)
        kernels.sums(self.units, self.importance, *_factors(line), top, sums)
        return Sums(*sums.astype(np.float64))


def _factors(line: Line) -> tuple[Array, Array]:
    """Return one over the scales of LINE, and its biases."""
    steps = np.where(line.scales == 0, np.inf, line.scales)
    return (1 / steps).astype(np.float32), line.biases.astype(np.float32)


def _ends(values: Array, zero: str | None) -> tuple[Array, Array]:
    """Return from where to where the grid of each group reaches."""
    least, largest = (np.empty(len(values), np.float32) for _ in range(2))
    kernels.ends(values, least, largest)
    if zero is None:
        return least, largest
    if zero == "integer":
        return np.minimum(least, 0), np.maximum(largest, 0)
    farthest = np.maximum(-least, largest)
    return -farthest, farthest


def _ratio(shared: Float64, spread: Float64) -> Float64:
    """Return the slopes SHARED / SPREAD, 1 where there is none."""
    sloped = spread > 0
    slopes: Float64 = np.where(sloped, shared, 1) / np.where(sloped, spread, 1)
    return slopes
