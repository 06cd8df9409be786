"""How much of a merge a form keeps, and what its rounding costs, summed up block by block."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from ..converters.adapters.survival import Sums, Survival, judge
from ..converters.quantization import step
from .forms import WEIGHT, Float64, Form
from .touched import Base, Block, Touched, blocks

ENOUGH: Final = "pass"
ERASED: Final = "refuse"
SAMPLE: Final = 16  # blocks of a weight that forms are tried on: four million numbers


class Price(NamedTuple):
    """What quantizing costs a weight that was merged before.

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
        survival: how much of the change is in the stored weight.
        verdict: ``pass``, ``warn`` or ``refuse``.
        fits: whether all numbers fit the dtype of the form.
        changed: whether the merge changes anything at all.
        price: of a merge into the original.
    """

    form: Form
    survival: Survival
    verdict: str
    fits: bool
    changed: bool
    price: Price | None = None


class Tally:
    """Sums over blocks of a weight in one form."""

    def __init__(self, touched: Touched, form: Form) -> None:
        self.form, self.sums, self.steps = form, Sums(), list[float]()
        self.fits, self.changed = True, False
        self.base = Base(touched.tensors, touched.name) if touched.source else None
        self.size = self.error = self.live = 0.0

    def add(self, block: Block) -> None:
        """Add BLOCK."""
        place, before, wanted, parts = block
        real = self.form.decode(parts)
        finite = np.isfinite(real) | ~np.isfinite(before)
        real = np.where(finite, real, before)
        self.fits = self.fits and bool(finite.all())
        self.changed = self.changed or not np.array_equal(wanted, before)
        self.sums.add(wanted - before, real - before)
        if self.form.scheme:
            self.steps.append(step(parts, self.form.scheme))
        else:
            self.sums.see(parts[WEIGHT])
        if self.base:
            self.size += squares(wanted)
            self.error += squares(real - wanted)
            self.live += squares(self.base.before(place) - before)

    def measured(self) -> Measured:
        """Return the figures, judged by the same bar wherever the weight comes from."""
        survival = self.sums.survival(float(np.median(self.steps)) if self.steps else None)
        return Measured(
            self.form,
            survival,
            judge(survival) if self.fits else ERASED,
            self.fits,
            self.changed,
            self.price if self.base else None,
        )

    @property
    def price(self) -> Price:
        """What the rounding costs."""
        sums = (self.error, self.live, self.sums.intended)
        return Price(*(math.sqrt(it / self.size) if self.size else 0.0 for it in sums))


def squares(values: Float64) -> float:
    """Return the sum of the squares of VALUES."""
    return float(np.vdot(values, values))


def measure(touched: Touched, form: Form) -> Measured:
    """Store some of TOUCHED in FORM, in memory, and say how much of the change is there.

    A few million numbers tell to a thousandth what more would; whatever is written is measured
    whole. Where the sample shows no change, all of the weight is looked at.
    """
    count = sum(1 for _ in blocks(touched.shape, whole=form.global_scale))
    for every in dict.fromkeys((-(-count // SAMPLE) or 1, 1)):
        tally = Tally(touched, form)
        for block in touched.encoded(form, every):
            tally.add(block)
        if tally.changed:
            break
    return tally.measured()
