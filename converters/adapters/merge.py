"""Merge an update into its base, and measure how much of it survives the rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import MismatchError, UnsupportedError
from ..dtypes import CODE, FLOATS
from ..values import Array, LowRank
from .rounding import round_once

Float64 = NDArray[np.float64]
BLOCK: Final = 1 << 20  # elements merged at a time, each in a handful of float64 temporaries


class Survival(NamedTuple):
    """The realised change of a weight against the intended one.

    Attributes:
        cosine: of the angle between the two changes; 1 if nothing was lost.
        relative_error: norm of their difference over the norm of the intended change.
        changed: elements that differ from the base after rounding.
        size: elements.
    """

    cosine: float
    relative_error: float
    changed: int
    size: int


@dataclass
class Sums:
    """Running sums over blocks of rows."""

    intended: float = 0.0
    realised: float = 0.0
    product: float = 0.0
    difference: float = 0.0
    changed: int = 0
    size: int = 0

    def add(self, intended: Float64, realised: Float64) -> None:
        """Add a block of both changes."""
        difference = realised - intended
        self.intended += float(np.vdot(intended, intended))
        self.realised += float(np.vdot(realised, realised))
        self.product += float(np.vdot(intended, realised))
        self.difference += float(np.vdot(difference, difference))
        self.changed += int(np.count_nonzero(realised))
        self.size += realised.size

    def survival(self) -> Survival:
        """Return the figures; a change of nothing that changed nothing survived whole."""
        if not self.intended:
            lost = float(self.realised > 0)
            return Survival(1.0 - lost, lost, self.changed, self.size)
        norms = math.sqrt(self.intended) * math.sqrt(self.realised)
        cosine = min(1.0, self.product / norms) if norms else 0.0
        error = math.sqrt(self.difference / self.intended)
        return Survival(cosine, error, self.changed, self.size)


def merge(base: Array, update: LowRank) -> tuple[Array, Survival]:
    """Return BASE with UPDATE in it, and how much of the update survived.

    The sum is formed in float64 and rounded once to the dtype of BASE:
    ``W + scale * b @ a``, or with DoRA magnitudes m ``m / ||W + scale * b @ a|| * (W + ...)``,
    the norm taken by row (Liu et al. 2024, equation 5).

    Raises:
        MismatchError: the shapes differ.
        UnsupportedError: BASE is not floating point, or the sum does not fit its dtype.

    >>> update = LowRank(np.ones((1, 2)), np.ones((2, 1)), scale=2.0)
    >>> merged, survival = merge(np.zeros((2, 2), np.float32), update)
    >>> merged.tolist(), survival
    ([[2.0, 2.0], [2.0, 2.0]], Survival(cosine=1.0, relative_error=0.0, changed=4, size=4))
    """
    _check(base, update)
    merged = np.empty_like(base, order="C")
    sums = Sums()
    rows = max(1, BLOCK // max(1, base.shape[1]))
    for start in range(0, base.shape[0], rows):
        block = slice(start, start + rows)
        before = base[block].astype(np.float64)
        after = update.rows(block).applied_to(before)
        merged[block] = rounded = round_once(after, base.dtype)
        realised = rounded.astype(np.float64)
        if np.isfinite(before).all() and not np.isfinite(realised).all():
            raise UnsupportedError(
                f"merged values do not fit {base.dtype}; merge into a wider dtype"
            )
        sums.add(after - before, realised - before)
    return merged, sums.survival()


def _check(base: Array, update: LowRank) -> None:
    if CODE.get(base.dtype) not in FLOATS:
        raise UnsupportedError(f"cannot merge into {base.dtype}; merge into the original weights")
    if base.shape != update.shape:
        problem = f"the base has shape {list(base.shape)}, the update {list(update.shape)}"
        raise MismatchError("update and base do not fit", [problem])
