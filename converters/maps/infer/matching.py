"""Pair parts by names and structure, all at once: the pairs that are sure teach what other names mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from ...values import Array
from .assignment import assign
from .parts import Key, Part, alignments, strangeness
from .synonyms import PIECES
from .tokens import concepts, likeness, rarity

ROUNDS: Final = 6
NAMES, CONTEXT, ORDER, MODULES, WORDS, LAYOUT = 1.0, 0.7, 0.1, 0.9, 0.4, 0.3  # weights of evidence
CLEAR: Final = 0.25  # a margin above which a guess is not called ambiguous


class Pair(NamedTuple):
    """One part of each side.

    Attributes:
        left: of torch.
        right: of the candidate.
        score: how well they go together.
        margin: how much the whole would lose by the best exchange of partners; infinite where the
            pair is the only one of its sizes.
        rivals: the other parts on the right that LEFT could be, the likeliest first.
    """

    left: Part
    right: Part
    score: float
    margin: float
    rivals: tuple[Part, ...]

    @property
    def ambiguous(self) -> bool:
        """Whether something else is about as likely."""
        return self.margin < CLEAR


def classes(left: Sequence[Part], right: Sequence[Part]) -> dict[Key, tuple[list[int], list[int]]]:
    """Return the places of all parts by key; those of one key may be each other."""
    found: dict[Key, tuple[list[int], list[int]]] = {}
    for side, parts in enumerate((left, right)):
        for at, part in enumerate(parts):
            found.setdefault(part.key, ([], []))[side].append(at)
    return found


@dataclass
class Matching:
    """Two sides with as many parts of each key, and the pairs between them.

    Attributes:
        left: parts of torch.
        right: parts of the candidate.
        known: pairs that are proven, by place; they stay and teach.
        hints: pairs, by place, that come before all others.
    """

    left: Sequence[Part]
    right: Sequence[Part]
    known: Mapping[int, int] = field(default_factory=dict)
    hints: Collection[tuple[int, int]] = ()

    @cached_property
    def groups(self) -> dict[Key, tuple[list[int], list[int]]]:
        """Places by key."""
        return classes(self.left, self.right)

    @cached_property
    def words(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """The concepts of each part's name."""
        return [spoken(part) for part in self.left], [spoken(part) for part in self.right]

    @cached_property
    def own(self) -> dict[Key, Array]:
        """How well parts go together by themselves, for each key (left, right)."""
        weight = rarity([part.family.template for part in (*self.left, *self.right)])
        mine, theirs = surroundings(self.left), surroundings(self.right)
        return {
            key: np.array(
                [
                    [
                        NAMES * likeness(self.words[0][i], self.words[1][j], weight)
                        + CONTEXT * resemblance(mine[i], theirs[j])
                        - ORDER * abs(self.left[i].family.place - self.right[j].family.place)
                        - LAYOUT * oddness(self.left[i], self.right[j])
                        for j in columns
                    ]
                    for i in rows
                ]
            )
            for key, (rows, columns) in self.groups.items()
        }

    def run(self) -> list[Pair]:
        """Return a pair for every part on the left."""
        scores = self.own
        for _ in range(ROUNDS):
            chosen, sure = self.choose(scores)
            scores = self.taught(chosen, sure)
        return self.pairs(scores)

    def choose(self, scores: Mapping[Key, Array]) -> tuple[dict[int, int], dict[int, float]]:
        """Return the best partners, and how sure each is, from 0 to 1."""
        chosen, sure = {}, {}
        for key, (rows, columns) in self.groups.items():
            score = self.fixed(key, scores[key])
            picked = assign(score)
            margins = exchange(score, picked)
            for at, row in enumerate(rows):
                chosen[row] = columns[picked[at]]
                sure[row] = float(np.clip(margins[at] / (2 * CLEAR), 0, 1))
        return chosen, sure

    def fixed(self, key: Key, score: Array) -> Array:
        """Return SCORE with what is proven out of reach for others."""
        rows, columns = self.groups[key]
        score = score.copy()
        for at, row in enumerate(rows):
            if row in self.known:
                score[at, columns.index(self.known[row])] += 100.0
            score[at] += [10.0 * ((row, column) in self.hints) for column in columns]
        return score

    def taught(self, chosen: Mapping[int, int], sure: Mapping[int, float]) -> dict[Key, Array]:
        """Return scores that count which modules and words went together elsewhere."""
        modules = Lessons(
            [part.family.modules for part in self.left], [p.family.modules for p in self.right]
        )
        spoken = Lessons(*self.words)
        for lesson in (modules, spoken):
            lesson.learn(chosen, sure)
        return {
            key: self.own[key]
            + np.array(
                [
                    [
                        MODULES * modules.support(i, j) + WORDS * spoken.support(i, j)
                        for j in columns
                    ]
                    for i in rows
                ]
            )
            for key, (rows, columns) in self.groups.items()
        }

    def pairs(self, scores: Mapping[Key, Array]) -> list[Pair]:
        """Return the pairs that SCORES say."""
        found = {}
        for key, (rows, columns) in self.groups.items():
            score = self.fixed(key, scores[key])
            picked = assign(score)
            margins = exchange(score, picked)
            for at, row in enumerate(rows):
                order = np.argsort(-score[at], kind="stable")
                rivals = tuple(self.right[columns[j]] for j in order if j != picked[at])
                partner = self.right[columns[picked[at]]]
                found[row] = Pair(
                    self.left[row], partner, float(score[at, picked[at]]), margins[at], rivals
                )
        return [found[row] for row in range(len(self.left))]


class Lessons:
    """What the chosen pairs say of features that their members have, such as modules or words."""

    def __init__(self, left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> None:
        self.left, self.right = left, right
        self.together: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.chosen: Mapping[int, int] = {}
        self.sure: Mapping[int, float] = {}

    def learn(self, chosen: Mapping[int, int], sure: Mapping[int, float]) -> None:
        """Count which features of the CHOSEN pairs went together, by how SURE each pair is."""
        self.chosen, self.sure = chosen, sure
        for i, j in chosen.items():
            for a in self.left[i]:
                for b in self.right[j]:
                    self.together[a][b] += sure[i]

    def support(self, i: int, j: int) -> float:
        """Return how much the other pairs speak for the pair (I, J), from 0 to 1."""
        features = self.left[i]
        return sum(self.of(a, i, j) for a in features) / len(features) if features else 0.0

    def of(self, feature: str, i: int, j: int) -> float:
        """Return what share of FEATURE's pairs, but for that of I, went to a feature of J."""
        own = self.sure[i]
        partner = set(self.right[self.chosen[i]])
        row = self.together[feature]
        counts = {b: row[b] - (own if b in partner else 0.0) for b in row}
        most = max(counts.values(), default=0.0)
        if most < 0.2:
            return 0.0
        return max((counts.get(b, 0.0) for b in self.right[j]), default=0.0) / most


def exchange(score: Array, picked: Sequence[int]) -> list[float]:
    """Return what each row would lose by the best exchange of partners with another row."""
    best = []
    for at, column in enumerate(picked):
        losses = [
            score[at, column] + score[other, theirs] - score[at, theirs] - score[other, column]
            for other, theirs in enumerate(picked)
            if other != at
        ]
        best.append(float(min(losses, default=np.inf)))
    return best


def spoken(part: Part) -> tuple[str, ...]:
    """Return the concepts of PART's name; of a piece, what stands at its place."""
    found = concepts(part.family.template)
    if part.cut is None:
        return found
    return tuple(
        PIECES[concept][part.at]
        if concept in PIECES and len(PIECES[concept]) == len(part.cut.sizes)
        else concept
        for concept in found
    )


def oddness(left: Part, right: Part) -> float:
    """Return how strange the likeliest layout of LEFT on RIGHT is."""
    ways = alignments(left, right, most=1)
    return strangeness(left, right, ways[0]) if ways else 0.0


def surroundings(parts: Sequence[Part]) -> list[list[Counter[Key]]]:
    """Return for every part what the modules around it hold, the nearest first.

    A module that holds no more than the one inside it is passed over.
    """
    inside: dict[str, Counter[Key]] = defaultdict(Counter)
    for part in parts:
        for module in part.family.modules:
            inside[module][part.key] += 1
    found = []
    for part in parts:
        rows: list[Counter[Key]] = [Counter([part.key])]
        for module in part.family.modules:
            if inside[module] != rows[-1]:
                rows.append(inside[module])
        found.append(rows[1:4])
    return found


def resemblance(mine: Sequence[Counter[Key]], theirs: Sequence[Counter[Key]]) -> float:
    """Return how alike the surroundings of two parts are, the nearest counting most."""
    total = weight = 0.0
    for level, own in enumerate(mine):
        near = [other for at, other in enumerate(theirs) if abs(at - level) < 2]
        share = 0.5**level
        weight += share
        total += share * max((overlap(own, other) for other in near), default=0.0)
    return total / weight if weight else float(not theirs)


def overlap(one: Counter[Key], other: Counter[Key]) -> float:
    """Return what two collections share.

    >>> overlap(Counter("aab"), Counter("ab"))
    0.6666666666666666
    """
    return (one & other).total() / max(1, (one | other).total())
