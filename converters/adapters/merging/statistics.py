"""How much of a merge a form keeps, and what its rounding costs, summed up block by block."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from ...quantization import step
from ...quantization.forms import WEIGHT, Float64, Form
from .affected import AffectedWeight, Base, Block, Index, blocks
from .matrices import Matrices, squares
from .survival import Survival, judge

ENOUGH: Final = "pass"
ERASED: Final = "refuse"
SAMPLE: Final = 16  # blocks of a weight that forms are tried on: four million numbers


class QuantizationErrors(NamedTuple):
    """The errors that quantization makes in a weight that was merged before.

    Attributes:
        error: distance of the stored weight from the merged one, relative to the latter's size.
        live: the same of the base with the adapter live on it.
        update: the size of the update, relative to the same.
    """

    error: float
    live: float
    update: float


class Measured(NamedTuple):
    """What a form keeps of a merge.

    Attributes:
        form: the form.
        survival: how much of the change is in the stored weight; of its worst expert, if it has any.
        verdict: ``pass``, ``warn`` or ``refuse``.
        fits: whether all numbers fit the dtype of the form.
        changed: whether the merge changes anything at all.
        errors: of quantization, for a merge into the original.
        part: the index of the worst expert; empty for a single matrix.
        seen: numbers that the figures are of.
        broken: what is not a finite number, in words; empty if all are.
    """

    form: Form
    survival: Survival
    verdict: str
    fits: bool
    changed: bool
    errors: QuantizationErrors | None = None
    part: Index = ()
    seen: int = 0
    broken: str = ""


class Statistics:
    """Sums over blocks of a weight in one form."""

    def __init__(self, weight: AffectedWeight, form: Form) -> None:
        self.form = form
        self.matrices = Matrices(weight.change, weight.own)
        self.fits, self.broken = True, ""
        self.base = Base(weight.tensors, weight.name) if weight.source else None
        self.size = self.error = self.live = 0.0

    def add(self, block: Block) -> None:
        """Add BLOCK."""
        place, before, wanted, parts = block
        real = self.form.decode(parts)
        finite = np.isfinite(real) | ~np.isfinite(before)
        self.broken = self.broken or broken(before, wanted)
        self.fits = self.fits and bool(finite.all())
        self.matrices.add(place, before, wanted, np.where(finite, real, before))
        at = self.matrices.matrix(place)
        if self.form.scheme:
            self.matrices.steps[at].append(step(parts, self.form.scheme))
        else:
            self.matrices.sums[at].see(parts[WEIGHT])
        if self.base:
            self.size += squares(wanted)
            self.error += squares(real - wanted)
            self.live += squares(self.base.before(place) - before)

    def measured(self) -> Measured:
        """Return the figures, judged by the same bar wherever the weight comes from."""
        part, survival = self.matrices.worst()
        return Measured(
            self.form,
            survival,
            judge(survival) if self.fits else ERASED,
            self.fits,
            self.matrices.changed,
            self.errors if self.base else None,
            part,
            self.matrices.seen,
            self.broken,
        )

    @property
    def errors(self) -> QuantizationErrors:
        """The quantization errors."""
        sums = (self.error, self.live, self.matrices.intended)
        return QuantizationErrors(*(math.sqrt(it / self.size) if self.size else 0.0 for it in sums))


def broken(before: Float64, wanted: Float64) -> str:
    """Describe what of a merge is not finite; empty if all is.

    >>> broken(np.array([np.nan]), np.array([np.nan]))
    'the base holds NaN or infinite numbers there'
    """
    if not np.isfinite(before).all():
        return "the base holds NaN or infinite numbers there"
    if not np.isfinite(wanted).all():
        return "the merge makes NaN or infinite numbers of it (as DoRA does of a row of zeros)"
    return ""


def measure(weight: AffectedWeight, form: Form) -> Measured:
    """Store some of WEIGHT in FORM, in memory, and say how much of the change is there.

    A few million numbers tell to a thousandth what more would; whatever is written is measured
    whole. Every expert is in the sample. Where it shows no change, all of the weight is looked at.
    """
    places = list(blocks(weight.shape, whole=form.global_scale))
    each = len(places) // max(1, len({place[:-1] for place in places}))  # of one matrix
    for every in dict.fromkeys((max(1, min(-(-len(places) // SAMPLE), each)), 1)):
        statistics = Statistics(weight, form)
        for block in weight.encoded(form, every):
            statistics.add(block)
        if statistics.matrices.changed:
            break
    return statistics.measured()
