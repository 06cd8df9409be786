"""Scales of groups in which one code is worth zero exactly: a whole one, or the middle of them all."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np

from .groups import Float64, Groups, Line
from .stored import best, near, rounded

INSETS: Final = (
    -0.5,
    0.0,
    0.5,
    1.0,
)  # steps by which a grid is narrower than the values, at each end
ROUNDS: Final = 2


def searched(groups: Groups, dtype: np.dtype[Any], zero: str) -> Line:
    """Return the line of least squared error that was found, in numbers that DTYPE has.

    Its bias is minus a code times its scale, rounded to DTYPE: of any code where ZERO is "integer",
    of the middle one where it is "symmetric". Scales are positive.
    """
    found: list[Line] = []
    for low, high in product(INSETS, INSETS):
        if zero == "integer" or low == high:
            found.extend(_lines(groups, low, high, dtype, zero))
    return best(found, groups)


def _lines(groups: Groups, low: float, high: float, dtype: np.dtype[Any], zero: str) -> list[Line]:
    """Return lines, as stored, that come of the grid with these insets."""
    scale = (groups.top - low - high) / groups.top
    begin = low - groups.middle
    zeros = _zeros(groups, (groups.zero - begin) / scale, zero)
    line = Line(np.full_like(zeros, scale), groups.zero - zeros * scale)
    for _ in range(ROUNDS):
        line = groups.fitted_through(zeros, groups.sums_by(line))
    scales = near(groups.in_values(line).scales, dtype, groups.top)
    return [Line(some, rounded(-zeros * some, dtype)) for some in scales]


def _zeros(groups: Groups, places: Float64, zero: str) -> Float64:
    """Return the code that is worth zero, by where zero is on a grid."""
    if zero == "symmetric":
        return np.full_like(places, groups.middle)
    return np.clip(np.rint(places), 0, groups.top)
