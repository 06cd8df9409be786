"""Which rule llama.cpp's converter followed: found out by value, never guessed.

A checkpoint whose tensors the GGUF file already has is the reference: the base model where it is
given, and then every number has to agree; without it the checkpoint to be exported itself, which
is close to its base, while a wrong rule is as far away as another model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ..checkpoints import Checkpoint
from ..quantization import Dequantized
from ..values import Array
from .file import GgufFile
from .names import Pairing
from .rows import BLOCK, count, quantized, sample
from .rules import RULES, Rule, Wanted
from .types import FLOATS, TYPES, allowed

NEAR: Final = 0.5  # relative distance; of two unrelated tensors it is 1.4
LOSSY: Final = 0.35  # of what a few bits per weight do to the base's own tensors
CLEARLY: Final = 2.0  # how much further away the next rule has to be
HEADED: Final = re.compile(r"(?:\.(\d{1,6})\.|\b)attn_([qk])\.(weight|bias)$")
BLOCK_NAME: Final = re.compile(r"^blk\.\d+\.")


class Proof(NamedTuple):
    """What the values show.

    Attributes:
        rules: tensor of the GGUF file -> what makes it.
        exact: tensors of the reference that the file has without any difference.
        rounded: those that it has as far as its types can hold them.
        near: those that it has only nearly.
        problems: what agrees with no rule, or with more than one.
    """

    rules: Mapping[str, Rule]
    exact: int
    rounded: int
    near: int
    problems: tuple[str, ...]


@dataclass
class Score:
    """How far a rule is from the file, over the tensors of a kind.

    Attributes:
        outside: numbers further away than rounding explains.
        different: numbers that differ at all.
        gap: sum of squared differences.
        size: sum of squares.
    """

    outside: int = 0
    different: int = 0
    gap: float = 0.0
    size: float = 0.0

    @property
    def distance(self) -> float:
        """The relative distance; of nothing from nothing it is none."""
        return (self.gap / self.size) ** 0.5 if self.size else float("inf") if self.gap else 0.0

    def add(self, exact: Array, stored: Array, kind: str, computed: str | None) -> None:
        """Count the float32 rows EXACT against what the file has STORED as KIND."""
        self.size += square(stored)
        if np.array_equal(exact, stored):
            return
        gap = exact - stored  # exact where they are close, and not zero where they differ
        self.gap += square(gap)
        self.different += int(np.count_nonzero(gap))
        if kind in TYPES:
            self.outside += int(np.count_nonzero(~(np.abs(gap) <= allowed(exact, kind, computed))))
        else:
            self.outside += gap.size  # no bound is known for its numbers


def square(rows: Array) -> float:
    """Return the sum of squares of ROWS."""
    return float(np.vdot(rows, rows))


@dataclass
class Evidence:
    """What is known of the tensors of one kind, such as ``blk.*.attn_q.weight``.

    Attributes:
        names: the tensors, by their names in the GGUF file.
        scores: of every rule that makes all their shapes.
        each: by tensor, of every rule.
    """

    names: list[str]
    scores: dict[Rule, Score] = field(default_factory=dict)
    each: dict[str, dict[Rule, Score]] = field(default_factory=dict)

    def within(self) -> list[Rule]:
        """Return the rules that explain every number."""
        return [rule for rule, score in self.scores.items() if not score.outside]

    def nearest(self) -> list[Rule]:
        """Return the rules, the nearest first."""
        return sorted(self.scores, key=lambda rule: self.scores[rule].distance)


def heads_of(like: GgufFile, name: str) -> int | None:
    """Return how many heads the rows of tensor NAME belong to; ``None`` where they have none."""
    found = HEADED.search(name)
    if found is None:
        return None
    block = int(found[1] or 0)
    count = like.sized("attention.head_count_kv", block) if found[2] == "k" else None
    count = like.sized("attention.head_count", block) if count is None else count
    return count or None


def wanted_of(like: GgufFile, name: str, members: Sequence[str]) -> Wanted:
    """Return what each of the MEMBERS of tensor NAME has to become; experts are stacked."""
    shape = like.tensors[name].shape
    return Wanted(shape[1:] if len(members) > 1 else shape, heads_of(like, name))


def candidates(
    like: GgufFile, name: str, members: Sequence[str], checkpoint: Checkpoint
) -> list[Rule]:
    """Return the rules that make tensor NAME of LIKE of MEMBERS, judged by shapes alone."""
    wanted = wanted_of(like, name, members)
    stored = like.tensors[name].shape
    if len(members) > 1 and stored[0] != len(members):
        return []
    shapes = {checkpoint.headers[member].shape for member in members}
    named_norm = name.removesuffix(".weight").endswith("norm")
    coded = any(quantized(checkpoint, member) for member in members)
    return [
        rule
        for rule in RULES
        if all(rule.fits(shape, wanted) for shape in shapes)
        and (named_norm or not rule.computes)
        and not (coded and rule.turns)  # codes along columns cannot lie along rows
    ]


def prove(pairing: Pairing, like: GgufFile, reference: Checkpoint, *, strict: bool) -> Proof:
    """Find the rule of every tensor of LIKE by the values of REFERENCE.

    Args:
        pairing: of REFERENCE with LIKE.
        like: the GGUF file.
        reference: a checkpoint.
        strict: whether REFERENCE is what the file was made from, so that every number has to agree.
    """
    kinds: dict[str, list[str]] = {}
    for name in pairing.sources:
        kinds.setdefault(BLOCK_NAME.sub("blk.*.", name), []).append(name)
    found = {kind: evidence(names, pairing, like, reference) for kind, names in kinds.items()}
    rules: dict[str, Rule] = {}
    problems: list[str] = []
    for kind, seen in found.items():
        choice = choose(kind, found, like, strict=strict)
        if isinstance(choice, Rule):
            rules |= dict.fromkeys(seen.names, choice)
        else:
            problems.append(f"{kind}: {choice}")
    scores = [
        seen.each[name][rules[name]]
        for seen in found.values()
        for name in seen.names
        if name in rules
    ]
    exact = sum(not score.different for score in scores)
    rounded = sum(bool(score.different) and not score.outside for score in scores)
    return Proof(rules, exact, rounded, len(scores) - exact - rounded, tuple(problems))


def evidence(names: list[str], pairing: Pairing, like: GgufFile, reference: Checkpoint) -> Evidence:
    """Compare the tensors NAMES of LIKE with what every rule makes of REFERENCE."""
    fitting = [set(candidates(like, name, pairing.sources[name], reference)) for name in names]
    alive = [rule for rule in RULES if all(rule in some for some in fitting)]
    seen = Evidence(names)
    for name in names:
        seen.each[name] = measured(name, pairing.sources[name], like, reference, alive)
    for rule in alive:
        scores = [seen.each[name][rule] for name in names]
        seen.scores[rule] = Score(
            *(
                sum(getattr(score, part) for score in scores)
                for part in ("outside", "different", "gap", "size")
            )
        )
    return seen


def measured(
    name: str, members: Sequence[str], like: GgufFile, reference: Checkpoint, rules: Sequence[Rule]
) -> dict[Rule, Score]:
    """Return how far tensor NAME of LIKE is from what each of RULES makes of MEMBERS."""
    scores = {rule: Score() for rule in rules}
    wanted, kind = wanted_of(like, name, members), like.tensors[name].type
    for number, member in enumerate(members):
        first = number * count(wanted.shape)
        seen = sampled if isinstance(reference, Dequantized) else whole
        for rule, block, rows in seen(reference, member, rules, wanted):
            computed = FLOATS.get(reference.headers[member].dtype) if rule.computes else None
            there = like.rows(name, slice(first + block.start, first + block.stop))
            scores[rule].add(rows, there, kind, computed)
    return scores


Seen = Iterator[tuple[Rule, slice, Array]]


def whole(reference: Checkpoint, name: str, rules: Sequence[Rule], wanted: Wanted) -> Seen:
    """Yield what each of RULES makes of tensor NAME, all rows in float32, with their place."""
    source = reference.read(name)
    for rule in rules:
        for block, rows in blocks(rule.act(source, wanted)):
            yield rule, block, rows


def sampled(reference: Checkpoint, name: str, rules: Sequence[Rule], wanted: Wanted) -> Seen:
    """Yield some rows of what each of RULES makes of tensor NAME in float32, with their place."""
    for rule in rules:
        for block, rows in sample(reference, name, rule, wanted):
            yield rule, block, rows


def blocks(array: Array) -> Iterator[tuple[slice, Array]]:
    """Yield ARRAY a few rows at a time in float32, with their place."""
    rows = array.reshape(-1, array.shape[-1])
    step = max(1, BLOCK // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        yield slice(start, start + len(piece)), piece.astype(np.float32, copy=False)


def choose(kind: str, found: Mapping[str, Evidence], like: GgufFile, *, strict: bool) -> Rule | str:
    """Return the rule of the tensors called KIND, or what keeps us from knowing it."""
    seen = found[kind]
    if not seen.scores:
        return f"no known rule makes {like.tensors[seen.names[0]]} of it"
    lossy = any(like.tensors[name].type not in TYPES for name in seen.names)
    sure = seen.within()
    if strict and not lossy and not sure:
        best = seen.nearest()[0]
        return f"not what --base has ({best.name}: {seen.scores[best].distance:.2g} away)"
    sure = sure or near(seen, LOSSY if strict else NEAR)
    if not sure:
        best = seen.nearest()[0]
        return f"far from it under every rule ({best.name}: {seen.scores[best].distance:.2g} away)"
    return sure[0] if len(sure) == 1 else by_partner(kind, sure, found)


def near(seen: Evidence, limit: float) -> list[Rule]:
    """Return the rules within LIMIT for each tensor that no other is clearly nearer than."""
    best = seen.scores[seen.nearest()[0]].distance
    return [
        rule
        for rule, score in seen.scores.items()
        if score.distance <= CLEARLY * best
        and all(scores[rule].distance <= limit for scores in seen.each.values())
    ]


def by_partner(kind: str, sure: list[Rule], found: Mapping[str, Evidence]) -> Rule | str:
    """Return which of the rules SURE the weight of a bias follows, or the bias of a weight."""
    stem, _, last = kind.rpartition(".")
    partner = found.get(f"{stem}.{'weight' if last == 'bias' else 'bias'}")
    there = [rule for rule in sure if partner and rule in partner.within()]
    if len(there) == 1:
        return there[0]
    names = ", ".join(rule.name for rule in sure)
    return f"its values fit more than one rule ({names}); give the base model with --base"
