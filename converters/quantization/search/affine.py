"""Scale and bias of each group, searched: grids tried, the best one fitted to its own codes in turn."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np

from .groups import Groups, Line, Sums
from .stored import best, mlx_line, near

# Steps by which a grid begins above the least value, and ends below the largest one.
INSETS: Final = (-0.25, 0.25, 0.75, 1.25)
ROUNDS: Final = 2  # of a line for the codes and codes for the line


def searched(groups: Groups, dtype: np.dtype[Any]) -> Line:
    """Return the line of least squared error that was found, in numbers that DTYPE has.

    It is no worse than MLX's own, and infinite where DTYPE has no numbers for a group.
    """
    line = _best_grid(groups)
    for _ in range(ROUNDS):
        line = groups.fitted(groups.sums_by(line))[0]
    scales = groups.in_values(line).scales
    stored = [
        Line(some, bias)
        for some in near(scales, dtype, groups.top)
        for bias in near(groups.biases(some, line.biases), dtype, groups.top)
    ]
    return best([mlx_line(groups, dtype), *stored], groups)


def _best_grid(groups: Groups) -> Line:
    """Try grids that begin and end inside or outside of the values; return what fits the best codes."""
    shape, grids = groups.units.shape, list(product(INSETS, INSETS))
    sums = np.empty((3, len(grids), shape[1]), np.float32)
    moved = groups.room("moved", shape, np.float32)
    codes = groups.room("codes", shape, np.float32)
    for number, (low, high) in enumerate(grids):
        if number % len(INSETS) == 0:
            np.add(groups.units, np.float32(groups.middle - low), out=moved)
        np.multiply(moved, np.float32(groups.top / (groups.top - low - high)), out=codes)
        sums[:, number] = groups.sums(groups.rounded(codes))
    line, gain = groups.fitted(Sums(*sums.astype(np.float64)))
    return line.at(gain.argmax(0))
