"""Codes and grids improved in turn: each the best for the output while all the others stay.

Coordinate descent, as QuantEase does (Behdin et al. 2023), with scales and biases fitted in between.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...values import Array
from .grids import Affine, Grid

SWEEPS: Final = 2  # over all groups: later ones find less than 0.5 %
SINGULAR: Final = (
    1e-6  # of what it could be: the determinant of groups whose codes are all the same
)


def refine(
    wanted: Array, codes: Array, grids: list[Grid], products: Array, dtype: np.dtype[Any] | None
) -> None:
    """Improve CODES and GRIDS in place.

    Args:
        wanted: values, float32 ``(columns, rows)``.
        codes: of WANTED, whole numbers in float32 ``(columns, rows)``.
        grids: one for each group of columns, in their order.
        products: of the inputs, float32 ``(columns, columns)``.
        dtype: in which scales and biases are stored; they are left alone if ``None``.
    """
    size = len(wanted) // len(grids)
    groups = [slice(start, start + size) for start in range(0, len(wanted), size)]
    rest = wanted.copy()
    for group, grid in zip(groups, grids, strict=True):
        rest[group] -= grid.values(codes[group])
    pull = products @ rest  # by how much less of a value the output would err less
    for _ in range(SWEEPS):
        for group, grid in zip(groups, grids, strict=True):
            before = grid.values(codes[group])
            own, near = pull[group].copy(), products[group, group]
            if dtype is not None and isinstance(grid, Affine):
                _fit(codes[group], grid, own, near, dtype)
            _round_again(codes[group], grid, own, near)
            pull -= products[:, group] @ (grid.values(codes[group]) - before)


def _round_again(codes: Array, grid: Grid, pull: Array, products: Array) -> None:
    """Choose each of CODES again, the others given; keep PULL, that of their group, as it then is."""
    for column in range(len(codes)):
        before = grid.values(codes[column])
        codes[column] = grid.nearest(before + pull[column] / products[column, column])
        pull -= products[:, column, None] * (grid.values(codes[column]) - before)


def _fit(codes: Array, grid: Affine, pull: Array, products: Array, dtype: np.dtype[Any]) -> None:
    """Move scales and biases of GRID to the least error in the output, where that is less as stored."""
    moved, ones = products @ codes, products.sum(1)
    curve, mixed, level = (codes * moved).sum(0), ones @ codes, ones.sum()
    slope, offset = (codes * pull).sum(0), pull.sum(0)
    area = curve * level - mixed**2
    scaled = (slope * level - offset * mixed) / np.where(
        area > SINGULAR * curve * level, area, np.inf
    )
    scales = _stored(grid.scales + scaled, dtype)
    scaled = scales - grid.scales
    biases = _stored(grid.biases + (offset - scaled * mixed) / level, dtype)
    shifted = biases - grid.biases
    gain = 2 * (scaled * slope + shifted * offset)
    gain -= scaled**2 * curve + 2 * scaled * shifted * mixed + shifted**2 * level
    better = gain > 0
    grid.scales, grid.biases = (
        np.where(better, scales, grid.scales),
        np.where(better, biases, grid.biases),
    )
    pull -= moved * np.where(better, scaled, 0) + ones[:, None] * np.where(better, shifted, 0)


def _stored(numbers: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # what is not finite gains nothing
        return numbers.astype(dtype).astype(np.float32)
