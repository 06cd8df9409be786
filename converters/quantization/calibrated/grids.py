"""The values that codes of one group of columns can have, for every row: nearest codes, and their worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...values import Array
from ..codebooks import CODES, SCALES
from ..scheme import Scheme
from ..search import affine, floats, zeros
from ..search.groups import Groups
from ..search.stored import check_finite
from ..workspace import Room


@dataclass
class Affine:
    """``scales * code + biases``, float32 ``(rows,)`` each, in numbers that are stored."""

    scales: Array
    biases: Array
    top: int

    def nearest(self, values: Array) -> Array:
        """Return the codes nearest to VALUES, ``(..., rows)``, whole numbers in float32."""
        steps = np.where(self.scales == 0, np.inf, self.scales)
        codes: Array = np.rint((values - self.biases) / steps)
        return np.clip(codes, 0, self.top, out=codes)

    def values(self, codes: Array) -> Array:
        """Return what CODES are worth."""
        worth: Array = codes * self.scales + self.biases
        return worth

    def parts(self) -> dict[str, Array]:
        """Return the columns of the parts that store this."""
        return {"scales": self.scales, "biases": self.biases}


@dataclass
class Floats:
    """Tiny floating-point codes times a scale, uint8 ``(rows,)``."""

    scales: Array
    mode: str

    def nearest(self, values: Array) -> Array:
        """Return the codes nearest to VALUES, ``(..., rows)``, whole numbers in float32."""
        return floats.nearest(values, SCALES[self.mode][self.scales], self.mode).astype(np.float32)

    def values(self, codes: Array) -> Array:
        """Return what CODES are worth."""
        worth: Array = CODES[self.mode][codes.astype(np.uint8)] * SCALES[self.mode][self.scales]
        return worth

    def parts(self) -> dict[str, Array]:
        """Return the columns of the parts that store this."""
        return {"scales": self.scales}


Grid = Affine | Floats


def searched(
    values: Array, scheme: Scheme, dtype: np.dtype[Any], zero: str | None, importance: Array
) -> Grid:
    """Return the grid that was found for VALUES, ``(group, rows)``, by IMPORTANCE, ``(group,)``.

    Raises:
        UnsupportedError: DTYPE has no scale for a row.
    """
    spread = np.broadcast_to((importance / importance.mean()).astype(np.float32), values.T.shape)
    if not scheme.affine:
        return Floats(floats.searched(values.T, scheme.mode, Room(), spread)[1], scheme.mode)
    groups = Groups(values.T, scheme.bits, Room(), spread, zero)
    line = zeros.searched(groups, dtype, zero) if zero else affine.searched(groups, dtype)
    check_finite(line, values, dtype)
    return Affine(line.scales.astype(np.float32), line.biases.astype(np.float32), groups.top)
