"""What is proven of a pair, by values first and by outputs where values do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..balance import Balance
from ..families import Family
from . import values
from .probing import Probing, Runs
from .values import Values

CONVERTED = 0.5  # share of the elements that values must explain: fewer are a coincidence


class Proven(NamedTuple):
    """The partner of a part of torch.

    Attributes:
        column: its place among the candidate's parts.
        way: for every place of the part of torch the place in the candidate's.
        proof: ``value`` or ``outputs``.
        change: what the candidate's values differ by, as text.
        note: what a reader should know of it.
    """

    column: int
    way: tuple[int, ...]
    proof: str
    change: str = ""
    note: str = ""


@dataclass
class Evidence:
    """What is proven in one arrangement of the tensors that are cut.

    Attributes:
        balance: the arrangement; ``None`` where nothing is proven.
        pairs: by place of the part of torch.
        probing: the modules, ready for more questions; ``None`` where they were not asked.
        hints: pairs of places whose values are the same, but also somebody else's.
        notes: what a reader should know of the whole.
    """

    balance: Balance | None = None
    pairs: dict[int, Proven] = field(default_factory=dict)
    probing: Probing | None = None
    hints: frozenset[tuple[int, int]] = frozenset()
    notes: list[str] = field(default_factory=list)


def gather(
    families: tuple[Sequence[Family], Sequence[Family]],
    options: Sequence[Balance],
    held: tuple[Values, Values] | None,
    runs: Runs | None,
) -> Evidence:
    """Return what values and outputs prove of the FAMILIES of both sides."""
    evidence = Evidence()
    if held:
        by_values(evidence, families, options, held)
    if runs and (evidence.balance is None or len(evidence.pairs) < count(families, evidence)):
        by_outputs(evidence, families, options, runs)
    return evidence


def count(families: tuple[Sequence[Family], Sequence[Family]], evidence: Evidence) -> int:
    """Return how many parts of torch there are."""
    cuts = evidence.balance.left if evidence.balance else {}
    return len(families[0]) + sum(len(cut.sizes) - 1 for cut in cuts.values())


def by_values(
    evidence: Evidence,
    families: tuple[Sequence[Family], Sequence[Family]],
    options: Sequence[Balance],
    held: tuple[Values, Values],
) -> None:
    """Add to EVIDENCE the pairs that values prove."""
    found = values.decide(*families, options, held)
    if found is None or found.share < CONVERTED:
        evidence.notes.append("the candidate's values are no conversion of the torch model's")
        return
    evidence.balance, evidence.hints = found.balance, found.hints
    for row, (column, way, change) in found.pairs.items():
        evidence.pairs[row] = Proven(column, way, "value", change)


def by_outputs(
    evidence: Evidence,
    families: tuple[Sequence[Family], Sequence[Family]],
    options: Sequence[Balance],
    runs: Runs,
) -> None:
    """Add to EVIDENCE the pairs that outputs prove and values do not."""
    probing = Probing(*families, runs)
    found = probing.decide([evidence.balance] if evidence.balance else options)
    if found is None:
        evidence.notes.append(
            "no pairing was found with which the two modules agree: they compute different things,"
            " or the weights lie in a way that was not tried"
        )
        return
    evidence.balance, evidence.probing = found.balance, probing
    taken = {proven.column for proven in evidence.pairs.values()}
    for row, (column, way) in found.pairs.items():
        if row not in evidence.pairs and column not in taken:
            evidence.pairs[row] = Proven(column, way, "outputs")
