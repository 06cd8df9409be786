"""The last few tensors whose marks are alike: try who is who with weights that are all different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, permutations, product
from typing import Final

from ....values import Array
from ..links import shown
from ..parts import Key, Part, alignments
from .evidence import Evidence, Proven
from .probing import AGREE, distance, size

MOST_TRIES: Final = 96
Choice = dict[int, tuple[int, tuple[int, ...]]]


def pair_remaining(
    evidence: Evidence, parts: tuple[list[Part], list[Part]], wished: Mapping[int, int]
) -> None:
    """Add to EVIDENCE what outputs say of the parts that no mark told apart.

    Args:
        evidence: what is proven; the modules in it are asked again.
        parts: of both sides.
        wished: a partner for every part of torch, by names; decides where outputs cannot.
    """
    probing = evidence.probing
    if probing is None:
        return
    loose = [row for row in range(len(parts[0])) if row not in evidence.pairs]
    sure: Choice = {row: (pair.column, pair.way) for row, pair in evidence.pairs.items()}
    values = [probing.drawing.different(part, row) for row, part in enumerate(parts[0])]
    wanted = probing.outputs(0, parts[0], dict(enumerate(values)))
    agreeing = []
    for choice in islice(choices(loose, parts, wished), MOST_TRIES):
        given = carried(values, parts, {**sure, **choice})
        found = probing.outputs(1, parts[1], given)
        if distance(wanted, found) < AGREE * size(wanted):
            agreeing.append(choice)
    if not agreeing:
        _withdraw(evidence)
    for row in loose if agreeing else []:
        partners = {choice[row] for choice in agreeing}
        first = agreeing[0][row]
        proof = "outputs" if len(partners) == 1 else "guess"
        note = "" if proof == "outputs" else equal(partners, first, parts[1])
        evidence.pairs[row] = Proven(*first, proof, "", note)


def _withdraw(evidence: Evidence) -> None:
    """Take back what outputs proved: with weights that are all different the modules do not agree."""
    evidence.notes.append(
        "the modules differ once all weights do; what outputs said is only a guess"
    )
    for row, pair in evidence.pairs.items():
        if pair.proof == "outputs":
            note = "outputs, but only one at a time"
            evidence.pairs[row] = pair._replace(proof="guess", note=note)


def equal(
    partners: set[tuple[int, tuple[int, ...]]],
    first: tuple[int, tuple[int, ...]],
    right: Sequence[Part],
) -> str:
    """Return the note that outputs are the same with other PARTNERS."""
    others = sorted({shown(right[column]) for column, _ in partners if column != first[0]})
    return f"no output tells it from {', '.join(others) or 'its transpose'}"


def choices(
    loose: Sequence[int], parts: tuple[list[Part], list[Part]], wished: Mapping[int, int]
) -> list[Choice]:
    """Return the ways to pair the LOOSE parts of torch, as wished first."""
    groups: dict[Key, list[int]] = {}
    for row in loose:
        groups.setdefault(parts[0][row].key, []).append(row)
    per_group = []
    for rows in groups.values():
        columns = [wished[row] for row in rows]
        orders = islice(permutations(columns), MOST_TRIES)
        per_group.append([way for order in orders for way in ways_to_pair(rows, order, parts)])
    return [
        {row: pair for part in chosen for row, pair in part.items()}
        for chosen in islice(product(*per_group), MOST_TRIES)
    ]


def ways_to_pair(
    rows: Sequence[int], columns: Sequence[int], parts: tuple[list[Part], list[Part]]
) -> list[Choice]:
    """Return the ways to pair ROWS with COLUMNS, axes in their usual order first."""
    ways = [
        alignments(parts[0][row], parts[1][c], most=2) for row, c in zip(rows, columns, strict=True)
    ]
    return [
        {row: (column, way) for row, column, way in zip(rows, columns, chosen, strict=True)}
        for chosen in islice(product(*ways), 8)
    ]


def carried(
    values: Sequence[Array], parts: tuple[list[Part], list[Part]], chosen: Choice
) -> dict[int, Array]:
    """Return the candidate's parts that hold VALUES of torch's, in the layouts CHOSEN."""
    found = {}
    for row, (column, way) in chosen.items():
        left, right = parts[0][row], parts[1][column]
        squeezed = values[row].reshape([left.sizes[place] for place in left.places])
        order = [way.index(place) for place in right.places]
        found[column] = squeezed.transpose(order).reshape(right.sizes)
    return found
