"""Which tensor is which, by what the two modules compute.

Every class of tensors that could be each other gets one value on both sides, the same whichever way
axes of one size are turned: if the modules then agree, all but the classes' inner order is right.
After that one tensor at a time is changed. The change that it makes to the outputs is its mark, and the
tensor of the other side that leaves the same mark is the same tensor. So n! orders take 2 n runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import gcd
from typing import Final, TypeAlias

import numpy as np

from ....values import Array
from ..balance import Balance
from ..families import Family
from ..matching import classes
from ..parts import Cut, Key, Part, parts_of
from .drawing import Drawing, by_size, place, turns

Weights: TypeAlias = dict[str, Array]
Run: TypeAlias = Callable[[Weights], Mapping[str, Array]]
AGREE: Final = 2e-4  # relative difference of the outputs, both sides in float32
SEEN: Final = 2e-5  # a change of the outputs below this is rounding
SAME: Final = 0.02  # relative difference of two marks that are one
APART: Final = 5.0  # how much farther the next mark must be


@dataclass(frozen=True)
class Runs:
    """Both modules as functions of their weights, on one set of inputs.

    Attributes:
        left: torch.
        right: the candidate.
        fixed: weights of torch that no part holds, such as counters.
    """

    left: Run
    right: Run
    fixed: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What outputs decided.

    Attributes:
        balance: how tensors are cut, the pieces in their order.
        pairs: for each part of torch (by place in ``parts_of``) the candidate's, and the layout.
    """

    balance: Balance
    pairs: dict[int, tuple[int, tuple[int, ...]]]


class Probing:
    """Two modules under the same questions."""

    def __init__(self, left: Sequence[Family], right: Sequence[Family], runs: Runs) -> None:
        self.families = (list(left), list(right))
        self.runs = runs
        self.drawing = Drawing(())

    def decide(self, balances: Sequence[Balance], most: int = 160) -> Found | None:
        """Return what the outputs decide; ``None`` if the modules agree in no arrangement."""
        for at, balance in enumerate(arrangements(balances)):
            if at >= most:
                return None
            parts = self.parts(balance)
            self.drawing = Drawing(parts[0])
            marks = self.outputs(0, parts[0]), self.outputs(1, parts[1])
            if distance(*marks) < AGREE * size(marks[0]):
                return self.tell_apart(balance, parts, marks)
        return None

    def parts(self, balance: Balance) -> tuple[list[Part], list[Part]]:
        """Return the parts of both sides."""
        return parts_of(self.families[0], balance.left), parts_of(self.families[1], balance.right)

    def outputs(self, side: int, parts: Sequence[Part], changed: Mapping[int, Array] = {}) -> Array:
        """Run one SIDE with base values, the parts in CHANGED with others; return all outputs."""
        values = [
            changed[at] if at in changed else self.drawing.base(part)
            for at, part in enumerate(parts)
        ]
        weights = assemble(parts, values)
        run = (self.runs.left, self.runs.right)[side]
        found = run({**self.runs.fixed, **weights} if side == 0 else weights)
        return np.concatenate([np.ravel(array).astype(np.float64) for array in found.values()])

    def tell_apart(
        self, balance: Balance, parts: tuple[list[Part], list[Part]], still: tuple[Array, Array]
    ) -> Found:
        """Find the partner of every part, class by class."""
        pairs: dict[int, tuple[int, tuple[int, ...]]] = {}
        for key, (rows, columns) in classes(*parts).items():
            teams = Teams(self, key, parts, still)
            marks = {row: teams.left(row) for row in rows}
            visible = [row for row in rows if size(marks[row]) > SEEN * size(still[0])]
            pairs |= teams.match(visible, columns, marks)
        return Found(balance, pairs)


@dataclass
class Teams:
    """The parts of one key on both sides, which are told apart by their marks."""

    probing: Probing
    key: Key
    parts: tuple[list[Part], list[Part]]
    still: tuple[Array, Array]

    def left(self, row: int) -> Array:
        """Return the mark of a part of torch."""
        value = place(self.probing.drawing.change(self.key), self.parts[0][row])
        return self.probing.outputs(0, self.parts[0], {row: value}) - self.still[0]

    def right(self, column: int, turn: tuple[int, ...]) -> Array:
        """Return the mark of a part of the candidate, the change TURNED among axes of one size."""
        value = place(self.probing.drawing.change(self.key).transpose(turn), self.parts[1][column])
        return self.probing.outputs(1, self.parts[1], {column: value}) - self.still[1]

    def match(
        self, rows: Sequence[int], columns: Sequence[int], marks: Mapping[int, Array]
    ) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the pairs whose marks are one, where no other comes near."""
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        seen: list[tuple[int, tuple[int, ...], Array]] = []
        for turn in turns(self.key):
            free = [c for c in columns if c not in {pair[0] for pair in found.values()}]
            seen += [(column, turn, self.right(column, turn)) for column in free]
            for row in rows:
                if row not in found and (best := nearest(marks[row], seen)):
                    found[row] = best
            if len(found) == len(rows):
                break
        return {row: (column, self.way(row, column, turn)) for row, (column, turn) in found.items()}

    def way(self, row: int, column: int, turn: tuple[int, ...]) -> tuple[int, ...]:
        """Return TURN as places of the candidate for the places of torch."""
        mine, theirs = by_size(self.parts[0][row]), by_size(self.parts[1][column])
        onto = {mine[turn[at]]: theirs[at] for at in range(len(turn))}
        return tuple(onto[spot] for spot in self.parts[0][row].places)


def nearest(
    mark: Array, seen: Sequence[tuple[int, tuple[int, ...], Array]]
) -> tuple[int, tuple[int, ...]] | None:
    """Return whose mark is MARK; ``None`` where none is, or more than one."""
    ranked = sorted(
        (distance(mark, other) / size(mark), at) for at, (_, _, other) in enumerate(seen)
    )
    if not ranked or ranked[0][0] > SAME:
        return None
    if len(ranked) > 1 and ranked[1][0] < max(SAME, APART * ranked[0][0]):
        return None
    column, turn, _ = seen[ranked[0][1]]
    return column, turn


def size(array: Array) -> float:
    """Return the Euclidean norm, a not-a-number as infinity."""
    return float(np.nan_to_num(np.linalg.norm(array), nan=np.inf))


def distance(one: Array, other: Array) -> float:
    """Return the norm of the difference; infinite where the shapes differ."""
    return size(one - other) if one.shape == other.shape else np.inf


def assemble(parts: Sequence[Part], values: Sequence[Array]) -> Weights:
    """Return the tensors whose PARTS hold VALUES."""
    weights: Weights = {}
    pieces: dict[Family, list[Array]] = {}
    for part, value in zip(parts, values, strict=True):
        pieces.setdefault(part.family, []).append(value)
    cuts = {part.family: part.cut for part in parts}
    for family, rows in pieces.items():
        whole = joined(rows, cuts[family], len(family.counts)) if cuts[family] else rows[0]
        grid = whole.reshape(-1, *family.shape)
        weights.update({name: grid[at] for at, name in enumerate(family.names())})
    return weights


def joined(rows: Sequence[Array], cut: Cut | None, first: int) -> Array:
    """Lay the pieces of a tensor end to end, head by head where they take turns."""
    assert cut  # noqa: S101
    axis = first + cut.axis
    split = [row.reshape(*row.shape[:axis], cut.heads, -1, *row.shape[axis + 1 :]) for row in rows]
    whole = np.concatenate(split, axis=axis + 1)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])


def arrangements(balances: Sequence[Balance]) -> Iterator[Balance]:
    """Yield BALANCES with their pieces in every order and by every number of heads, plain ones first.

    The tensors of one module are arranged alike.
    """
    for plain in (True, False):
        for balance in balances:
            yield from arranged(balance, plain=plain)


def arranged(balance: Balance, *, plain: bool) -> Iterator[Balance]:
    """Yield one balance in all arrangements, those in one place per piece only if PLAIN."""
    modules = sorted({(side, module_of(f)) for side in (0, 1) for f in balance[side]})
    choices = []
    for side, module in modules:
        cuts = [cut for family, cut in balance[side].items() if module_of(family) == module]
        choices.append(ways_to_arrange(cuts[0], plain=plain, common=cuts))
    for chosen in sorted(product(*choices), key=lambda row: sum(heads > 1 for _, heads in row)):
        if plain or any(heads > 1 for _, heads in chosen):
            by_module = dict(zip(modules, chosen, strict=True))
            yield Balance(*(rearranged(balance[side], by_module, side) for side in (0, 1)))


def module_of(family: Family) -> str:
    """Return the path of the module that FAMILY is in."""
    return family.modules[0] if family.modules else family.template


def ways_to_arrange(
    cut: Cut, *, plain: bool, common: Sequence[Cut]
) -> list[tuple[tuple[int, ...], int]]:
    """Return the orders of a cut's sizes, and numbers of heads by which the pieces could take turns."""
    orders = sorted(set(permutations(cut.sizes)), key=lambda order: order != cut.sizes)
    divisor = gcd(*(size for one in common for size in one.sizes))
    heads = [] if plain else [h for h in range(2, divisor + 1) if divisor % h == 0]
    return [(order, 1) for order in orders] + [(order, h) for h in heads for order in orders]


def rearranged(
    cuts: Mapping[Family, Cut],
    chosen: Mapping[tuple[int, str], tuple[tuple[int, ...], int]],
    side: int,
) -> dict[Family, Cut]:
    """Return CUTS as CHOSEN, where a cut has the same sizes."""
    found = {}
    for family, cut in cuts.items():
        order, heads = chosen[side, module_of(family)]
        alike = sorted(order) == sorted(cut.sizes)
        found[family] = Cut(cut.axis, order if alike else cut.sizes, heads)
    return found
