"""How much of a change is in a weight, matrix by matrix: a large expert hides no small one."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from ...quantization.forms import Float64, Form
from ...values import LowRank
from .affected import Change, Index
from .survival import Sums, Survival, worst_first

# What is the rounding of the arithmetic, of the size of a weight. Magnitudes of DoRA are the norms of
# the rows before any training; of those that the trainer saw, dequantized in the dtype of the base
# (mlx-lm 0.32, tuner/dora.py). Where the other half of the update is nothing there was no training.
NOTHING: Final = 2.0**-20
UNTRAINED: Final = {"F32": NOTHING, "F16": 2.0**-11, "BF16": 2.0**-8}  # unit roundoffs, of 16 bits


class Matrices:
    """Sums over the matrices of one weight: one, or as many as there are experts.

    Attributes:
        sums: of the changes, by the index of the matrix.
        weights: the sum of the squares of the weight before, by the same.
        steps: between two numbers of the target, as found in its blocks.
        seen: numbers that were looked at.
    """

    def __init__(self, change: Change, own: Form) -> None:
        self.sums: defaultdict[Index, Sums] = defaultdict(Sums)
        self.weights: defaultdict[Index, float] = defaultdict(float)
        self.steps: defaultdict[Index, list[float]] = defaultdict(list)
        self.seen = 0
        # A `modules_to_save` tensor that is dense may be a convolution's: no stack of matrices.
        self._apart = own.scheme is not None or isinstance(change, LowRank)
        self._nothing = nothing(change, own) ** 2

    def matrix(self, place: Index) -> Index:
        """Return the index of the matrix that PLACE is in."""
        return place[:-1] if self._apart else ()

    def add(self, place: Index, before: Float64, wanted: Float64, real: Float64) -> None:
        """Add the rows at PLACE: their values before, as they should become, as they are now."""
        at = self.matrix(place)
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # the caller looks for what is not finite
            self.sums[at].add(wanted - before, real - before)
            self.weights[at] += squares(before)
        self.seen += before.size

    def moves(self, at: Index) -> bool:
        """Say whether the change of the matrix AT is more than nothing; one of NaN is."""
        return not self.sums[at].intended <= self._nothing * self.weights[at]

    @property
    def changed(self) -> bool:
        """Whether any of them is to change."""
        return any(self.moves(at) for at in self.sums)

    @property
    def intended(self) -> float:
        """The sum of the squares of the change that is wanted."""
        return sum(it.intended for it in self.sums.values())

    def worst(self) -> tuple[Index, Survival]:
        """Return the matrix that keeps least of its change, and how much."""
        found = {"/".join(map(str, at)): (at, self._survival(at)) for at in self.sums}
        if not found:
            return (), Survival(1.0, 1.0, 0.0, 0.0, 0, 0)
        name, _ = worst_first({name: it for name, (_, it) in found.items()})[0]
        return found[name]

    def _survival(self, at: Index) -> Survival:
        """Return what is kept of the change of the matrix AT; a change of nothing is kept whole."""
        sums = self.sums[at]
        if not self.moves(at):
            return Survival(1.0, 1.0, 0.0, 0.0, sums.changed, sums.size)
        steps = self.steps.get(at)
        return sums.survival(float(np.median(steps)) if steps else None)


def nothing(change: Change, own: Form) -> float:
    """Return how large a CHANGE of a weight stored as OWN may be and mean nothing.

    In parts of the weight. Zero but for DoRA: an update that is small is small, and not nothing.
    """
    if not isinstance(change, LowRank) or change.magnitude is None:
        return 0.0
    trained = change.a.any() and change.b.any()
    return NOTHING if trained else UNTRAINED.get(own.dtype, UNTRAINED["BF16"])


def squares(values: Float64) -> float:
    """Return the sum of the squares of VALUES."""
    return float(np.vdot(values, values))
