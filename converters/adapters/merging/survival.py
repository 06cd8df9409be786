"""How much of a change is in a weight after it was rounded, layer by layer, and whether it will do.

A merge adds a change D to a weight and rounds. Where D is small beside the steps of the target,
rounding leaves another change than D, or none: *fusing into a 4-bit base erases the fine-tune*.
The gain alone does not tell (random rounding has gain 1), nor does the cosine (half of D has 1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...values import Array

Float64 = NDArray[np.float64]
Verdict = Literal["pass", "warn", "refuse"]

SAMPLE: Final = 1 << 13  # elements of a block whose spacing is looked at
GAIN: Final = (0.9, 1.1)
COSINE: Final = 0.9
WARN_GAIN: Final = (0.7, 1.3)
WARN_COSINE: Final = 0.7
ORDER: Final[tuple[Verdict, ...]] = ("refuse", "warn", "pass")
WORDS: Final[Mapping[Verdict, str]] = {"refuse": "LOST", "warn": "weak", "pass": "ok"}


class Survival(NamedTuple):
    """The realised change R of a weight against the intended one D.

    Attributes:
        gain: ``<R, D> / <D, D>``, how much of D is in R; 1 if nothing was lost.
        cosine: of the angle between the two; 1 if nothing else came in.
        relative_error: ``|R - D| / |D|``.
        step_ratio: root mean square of D over the median step between the target's numbers: the
            quantization step, or the spacing of floating-point numbers at the weights.
        changed: elements that differ from before.
        size: elements.
    """

    gain: float
    cosine: float
    relative_error: float
    step_ratio: float
    changed: int
    size: int


@dataclass
class Sums:
    """Running sums over blocks of a weight."""

    intended: float = 0.0
    realised: float = 0.0
    product: float = 0.0
    difference: float = 0.0
    changed: int = 0
    size: int = 0
    spacings: dict[float, int] = field(default_factory=dict)

    def add(self, intended: Float64, realised: Float64) -> None:
        """Add a block of both changes; REALISED is used up."""
        self.intended += _dot(intended, intended)
        self.realised += _dot(realised, realised)
        self.product += _dot(intended, realised)
        self.changed += int(np.count_nonzero(realised))
        self.size += realised.size
        difference = np.subtract(realised, intended, out=realised)
        self.difference += _dot(difference, difference)

    def see(self, weights: Array) -> None:
        """Add the spacing of floating-point numbers at a sample of WEIGHTS."""
        for spacing, count in _spacings(weights):
            self.spacings[spacing] = self.spacings.get(spacing, 0) + count

    def join(self, other: Sums) -> None:
        """Add the sums of other blocks."""
        for name in ("intended", "realised", "product", "difference", "changed", "size"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for spacing, count in other.spacings.items():
            self.spacings[spacing] = self.spacings.get(spacing, 0) + count

    def survival(self, step: float | None = None) -> Survival:
        """Return the figures; a change of nothing that changed nothing survived whole.

        Args:
            step: between two numbers of the target; the median spacing seen if none is given.
        """
        if not self.intended:
            kept = float(self.realised == 0)
            return Survival(kept, kept, 1.0 - kept, 0.0, self.changed, self.size)
        norms = math.sqrt(self.intended) * math.sqrt(self.realised)
        return Survival(
            self.product / self.intended,
            min(1.0, self.product / norms) if norms else 0.0,
            math.sqrt(self.difference / self.intended),
            _ratio(math.sqrt(self.intended / self.size), step or self._median()),
            self.changed,
            self.size,
        )

    def _median(self) -> float:
        """Return the median spacing, of two the smaller one; 0 if none was seen."""
        passed = 0
        for spacing in sorted(self.spacings):
            passed += self.spacings[spacing]
            if 2 * passed >= sum(self.spacings.values()):
                return spacing
        return 0.0


def idle(survival: Survival) -> bool:
    """Say whether nothing was to change, and nothing did.

    >>> idle(Survival(1.0, 1.0, 0.0, 0.0, 0, 4)), idle(Survival(0.0, 0.0, 1.0, 0.1, 0, 4))
    (True, False)
    """
    return not (survival.changed or survival.step_ratio)


def judge(survival: Survival) -> Verdict:
    """Say whether a change that survived so far will do.

    >>> judge(Survival(0.11, 0.06, 2.1, 0.04, 9, 9))
    'refuse'
    """
    gain, cosine = survival.gain, survival.cosine
    if GAIN[0] <= gain <= GAIN[1] and cosine >= COSINE:
        return "pass"
    if WARN_GAIN[0] <= gain <= WARN_GAIN[1] and cosine >= WARN_COSINE:
        return "warn"
    return "refuse"


def worst_first(survivals: Mapping[str, Survival]) -> list[tuple[str, Survival]]:
    """Return SURVIVALS by name, the one of which least survived first."""
    return sorted(survivals.items(), key=lambda item: (*_standing(item[1]), item[0]))


def worst_of(survivals: Iterable[Survival]) -> Survival:
    """Return the one of SURVIVALS of which least survived.

    >>> worst_of([Survival(1.0, 1.0, 0.0, 9.0, 4, 4), Survival(0.0, 0.0, 1.0, 0.1, 0, 4)]).gain
    0.0
    """
    return min(survivals, key=_standing)


def _standing(it: Survival) -> tuple[int, float]:
    """Return what orders survivals, the worst first."""
    return ORDER.index(judge(it)), -max(abs(1 - it.gain), 1 - it.cosine)


def lines(survivals: Mapping[str, Survival]) -> list[str]:
    """Return a table of SURVIVALS, worst first.

    >>> for line in lines({"q_proj.weight": Survival(0.11, 0.06, 2.1, 0.04, 9, 9)}):
    ...     print(line)
      gain  cosine  change/step        weight
     0.110  0.0600        0.040  LOST  q_proj.weight
    """
    head = f"{'gain':>6}  {'cosine':>6}  {'change/step':>11}  {'':4}  weight"
    return [head, *(_line(name, it) for name, it in worst_first(survivals))]


def heading(survivals: Mapping[str, Survival]) -> str:
    """Return what to say above a table of SURVIVALS: how many are in the weights.

    >>> heading({"a": Survival(1.0, 1.0, 0.0, 9.0, 4, 4), "b": Survival(1.0, 1.0, 0.0, 0.0, 0, 4)})
    '2 of 2 adapter updates merged, 1 of them survived the rounding, 1 of them changes nothing:'
    """
    count, none = len(survivals), sum(map(idle, survivals.values()))
    kept = sum(judge(it) != "refuse" for it in survivals.values()) - none
    parts = [f"{kept} of them survived the rounding"] if kept or not none else []
    parts += [f"{none} of them {'changes' if none == 1 else 'change'} nothing"] if none else []
    return f"{count} of {count} adapter updates merged, {', '.join(parts)}:"


def _line(name: str, it: Survival) -> str:
    if idle(it):
        return f"{'-':>6}  {'-':>6}  {'-':>11}  {'none':4}  {name}"
    ratio = f"{it.step_ratio:11.3f}" if it.step_ratio < 1e4 else f"{it.step_ratio:11.3g}"
    return f"{it.gain:6.3f}  {it.cosine:6.4f}  {ratio}  {WORDS[judge(it)]:4}  {name}"


def refusal(survivals: Mapping[str, Survival]) -> list[str]:
    """Return a line for each of the weights whose change is lost, worst first; empty if none."""
    return [
        f"{name}: its change is {it.step_ratio:.2g} steps of the target large, and"
        f" gain {it.gain:.2f}, cosine {it.cosine:.2f} are left of it"
        for name, it in worst_first(survivals)
        if judge(it) == "refuse"
    ]


def _dot(one: Float64, other: Float64) -> float:
    """Return the sum of the products, in one thread, unlike a BLAS, and so always the same."""
    return float(np.einsum("i,i->", one.reshape(-1), other.reshape(-1), dtype=np.float64))


def _ratio(one: float, other: float) -> float:
    """Return ONE / OTHER, a finite number."""
    return min(one / other, sys.float_info.max) if other else sys.float_info.max


def _spacings(weights: Array) -> Iterable[tuple[float, int]]:
    """Yield the spacing of floating-point numbers at a sample of WEIGHTS, and how often it was met.

    The spacing is 2 to the power of an exponent that stands in the bits of the number.
    """
    info: Any = ml_dtypes.finfo(weights.dtype)  # type: ignore[no-untyped-call]
    flat = np.ascontiguousarray(weights.reshape(-1)[:: -(-weights.size // SAMPLE)])
    bits = flat.view(f"u{weights.dtype.itemsize}") & ((1 << (8 * weights.dtype.itemsize - 1)) - 1)
    fields, counts = np.unique(bits >> int(info.nmant), return_counts=True)
    for exponent, count in zip(fields.tolist(), counts.tolist(), strict=True):
        yield math.ldexp(1.0, max(exponent, 1) - 1 + int(info.minexp) - int(info.nmant)), count
