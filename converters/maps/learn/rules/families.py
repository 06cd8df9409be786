"""Tensors that differ in one index become one tensor with one axis more."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from ....checkpoints.base import Header
from ...notation.names import Capture, Name
from ...notation.rules import Change
from ..trace.pieces import Factor, Piece

INTEGER: Final = re.compile(r"(?<![^.])(?:0|[1-9][0-9]*)(?![^.])")  # a whole segment of a name


class Tensor(NamedTuple):
    """A tensor of a rule, or all tensors of a family stacked.

    Attributes:
        name: with a capture where it is a family.
        shape: in what the pieces count; the index of a family is the first axis.
        header: of one tensor.
        members: names, by index.
    """

    name: Name
    shape: tuple[int, ...]
    header: Header
    members: tuple[str, ...]

    @property
    def each(self) -> int:
        """How much of the shape is one member."""
        return prod(self.shape) // len(self.members)

    @property
    def family(self) -> bool:
        """Whether there is an index."""
        return bool(self.name.captures)


def slots(name: str) -> tuple[str, tuple[int, ...]]:
    """Return NAME with its indices left out, and the indices.

    >>> slots("layers.3.experts.12.w1.weight")
    ('layers.{}.experts.{}.w1.weight', (3, 12))
    """
    return INTEGER.sub("{}", name), tuple(int(text) for text in INTEGER.findall(name))


def tensors(names: Sequence[str], headers: Mapping[str, Header], capture: str) -> list[Tensor]:
    """Return the tensors called NAMES, those that differ in one index 0, 1, 2 ... as one."""
    found: dict[str, list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    for name in names:
        skeleton, indices = slots(name)
        found[skeleton].append((indices, name))
    result = []
    for skeleton, group in found.items():
        if len(group) == 1 or (made := _family(skeleton, group, headers, capture)) is None:
            result += [
                Tensor(Name((it,)), headers[it].shape, headers[it], (it,)) for _, it in group
            ]
        else:
            result.append(made)
    return result


def _family(
    skeleton: str,
    group: list[tuple[tuple[int, ...], str]],
    headers: Mapping[str, Header],
    capture: str,
) -> Tensor | None:
    """Return the GROUP as one tensor if its members differ in one index, and in nothing else."""
    columns = list(zip(*(indices for indices, _ in group), strict=True))
    varying = [at for at, column in enumerate(columns) if len(set(column)) > 1]
    if not varying or any(columns[at] != columns[varying[0]] for at in varying):
        return None
    ordered = sorted(group, key=lambda member: member[0][varying[0]])
    if [indices[varying[0]] for indices, _ in ordered] != list(range(len(group))):
        return None
    header = headers[ordered[0][1]]
    if any(headers[name] != header for _, name in ordered):
        return None
    texts = [
        Capture(capture) if at in varying else str(column[0]) for at, column in enumerate(columns)
    ]
    members = tuple(name for _, name in ordered)
    return Tensor(filled(skeleton, texts), (len(group), *header.shape), header, members)


def filled(skeleton: str, texts: Iterable[str | Capture]) -> Name:
    """Return the name SKELETON with TEXTS in its slots."""
    head, *tails = skeleton.split("{}")
    parts: list[str | Capture] = [head]
    for text, tail in zip(texts, tails, strict=True):
        for part in (text, tail):
            if isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    return Name(tuple(part for part in parts if part))


class Part(NamedTuple):
    """A piece between tensor number SOURCE and tensor number TARGET of a rule."""

    source: int
    target: int
    piece: Piece


class Like(NamedTuple):
    """What is the same of pieces that may be one along an index.

    Attributes:
        source: number of the tensor that they come from.
        target: number of the tensor that they are in.
        factors: their sides.
        changes: of value.
        start: where they begin within a member of a family of sources.
        at: where they begin within a member of a family of targets.
    """

    source: int
    target: int
    factors: tuple[Factor, ...]
    changes: tuple[Change, ...]
    start: int | None
    at: int | None


def parts(
    sources: Sequence[Tensor], targets: Sequence[Tensor], pieces: Mapping[str, Sequence[Piece]]
) -> list[Part]:
    """Return the PIECES, by target, between families; those an even step apart become one."""
    places = {
        name: (at, index)
        for at, tensor in enumerate(sources)
        for index, name in enumerate(tensor.members)
    }
    groups: dict[Like, list[tuple[int, int]]] = defaultdict(list)
    for at, tensor in enumerate(targets):
        for index, name in enumerate(tensor.members):
            for piece in pieces[name]:
                source, member = places[piece.source]
                like = Like(
                    source,
                    at,
                    coalesced(piece.factors),
                    piece.changes,
                    piece.start if sources[source].family else None,
                    piece.at if tensor.family else None,
                )
                start = piece.start + member * sources[source].each
                groups[like].append((start, piece.at + index * tensor.each))
    return [
        Part(like.source, like.target, _piece(like, run))
        for like, starts in groups.items()
        for run in progressions(sorted(starts))
    ]


def _piece(like: Like, run: tuple[int, int, tuple[Factor, ...]]) -> Piece:
    start, at, more = run
    return Piece("", start, at, coalesced((*more, *like.factors)), like.changes)


def progressions(starts: list[tuple[int, int]]) -> list[tuple[int, int, tuple[Factor, ...]]]:
    """Return STARTS as one factor where each is as far from the last, else one by one.

    >>> progressions([(0, 0), (6, 12), (12, 24)])
    [(0, 0, (Factor(size=3, here=6, there=12),))]
    """
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(starts)}
    if len(steps) != 1 or min(step := next(iter(steps))) < 1:
        return [(start, place, ()) for start, place in starts]
    return [(*starts[0], (Factor(len(starts), *step),))]


def coalesced(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Return FACTORS with those joined that follow each other on both sides."""
    result: list[Factor] = []
    for factor in sorted(factors, key=lambda f: (-f.there, -f.size)):
        if result:
            size, here, there = result[-1]
            if (here, there) == (factor.size * factor.here, factor.size * factor.there):
                result[-1] = Factor(size * factor.size, factor.here, factor.there)
                continue
        result.append(factor)
    return tuple(result)
