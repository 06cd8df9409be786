"""One candidate tensor that no hash explains, and what it is measured against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ...converters.values import Array
from .places import bits
from .reference_index import Explanation, ReferenceIndex, nearest, ranked
from .sketches.sketch import Sketch, figures

# In unit roundoffs, on the scale of the norm: rounding to nearest errs by at most one, sums that
# an exporter forms in float32 by a few more.
CLOSE: Final = 4.0


@dataclass(frozen=True)
class CandidateTensor:
    """A candidate tensor that no hash explains."""

    index: ReferenceIndex
    name: str
    array: Array

    @cached_property
    def sketch(self) -> Sketch:
        """The sketch of the tensor, without hashes: none explains it."""
        return figures(self.array)

    @cached_property
    def peers(self) -> list[str]:
        """References of the same shape; that one alone of which most rows are this tensor's."""
        return [self.kept] if self.kept else self.index.same_shape(self.array.shape)

    @cached_property
    def kept(self) -> str | None:
        """The reference of which most rows are this tensor's, bit for bit, where its values are at hand.

        It is the one with the nearest name; then no other one needs to be read.
        """
        names = self.index.same_shape(self.array.shape) if self.array.size else []
        likely = nearest(self.name, names) if len(names) > 1 and self.index.arrays else None
        return (
            likely
            if likely and self.index.arrays and self._keeps(self.index.arrays(likely))
            else None
        )

    def _keeps(self, reference: Array) -> bool:
        if reference.dtype != self.array.dtype or self.array.ndim < 2:
            return False
        found, wanted = (bits(it).reshape(len(self.array), -1) for it in (self.array, reference))
        telling = (wanted != wanted[:, :1]).any(axis=1)  # a row of one number may be anybody's
        same = (found == wanted).all(axis=1)
        return 2 * int((same & telling).sum()) > len(found)

    @cached_property
    def by_name(self) -> str | None:
        """The reference with the nearest name, of the same shape if there is one, and not another's if one is."""
        free = [it for it in self.peers if it in self.index.free or it == self.name]
        names = free or self.peers or ranked(self.name, self.index.sketches)
        return nearest(self.name, names) if names else None

    @cached_property
    def by_value(self) -> tuple[str, float] | None:
        """The reference of the same shape with the nearest values, and the relative difference."""
        gaps = [(self.gap(self.index.sketches[name]), name) for name in self.peers]
        if not gaps:
            return None
        gap, name = min(gaps)
        return name, gap

    @property
    def permitted(self) -> bool:
        """Whether the route is known to change this tensor by more than rounding."""
        return self.name in self.index.altered

    def gap(self, other: Sketch, factor: float = 1.0, shift: Array | float = 0.0) -> float:
        """Return the estimated norm of ``self - (factor * other + shift)`` over that of self."""
        left = self.sketch.projections - factor * other.projections - shift
        own = float(np.sqrt(np.mean(self.sketch.projections**2)))
        return float(np.sqrt(np.mean(left**2))) / max(own, 1e-300)

    def explanation(self, source: str | None, kind: str, detail: str, *, ok: bool) -> Explanation:
        """Return the explanation of this tensor."""
        return self.index.explanation(self.name, self.array, (source, kind, detail), ok=ok)


def row_tolerance(it: Sketch, u: float) -> float:
    """Return how far the projections of equal rows of IT may lie apart at unit roundoff U.

    A row's projection is off by about u times the row's norm, and rows are seldom four times
    as large as the mean row.
    """
    return 4 * CLOSE * u * it.norm / math.sqrt(max(len(it.rows), 1)) + 1e-300
