"""Tensors of one side, folded: the same tensor of every repeated block is one family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Final

NUMBER: Final = re.compile(r"\d+")
HOLE: Final = "\0"  # stands for an index in a template; no tensor's name holds it
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Family:
    """One tensor, or the same tensor of every repeated block.

    Attributes:
        template: the name, with ``HOLE`` in place of each index.
        indices: the values of each index, as they are spelled.
        shape: of each tensor.
        label: tells tensors apart that have the same shape and cannot be the same: their values.
        place: of the first tensor in the order of declaration, from 0 to 1.
    """

    template: str
    indices: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]
    label: str = ""
    place: float = 0.0

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many values each index has."""
        return tuple(map(len, self.indices))

    @cached_property
    def stacked(self) -> tuple[int, ...]:
        """The shape of all tensors stacked, indices first."""
        return (*self.counts, *self.shape)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The paths of the modules around it, the nearest first.

        >>> Family("a.b.weight", (), (2,)).modules
        ('a.b', 'a')
        """
        parts = self.template.split(".")[:-1]
        return tuple(".".join(parts[:end]) for end in range(len(parts), 0, -1))

    def name(self, at: Iterable[str]) -> str:
        """Return the name of the tensor with the indices AT."""
        return fill(self.template, at)

    def names(self) -> Iterator[str]:
        """Yield all names, the last index fastest."""
        return (self.name(at) for at in product(*self.indices))


def fill(template: str, values: Iterable[str]) -> str:
    r"""Return TEMPLATE with VALUES in its holes.

    >>> fill("h.\0.w", ["3"])
    'h.3.w'
    """
    pieces = template.split(HOLE)
    ends = list(values)
    return pieces[0] + "".join(f"{v}{piece}" for v, piece in zip(ends, pieces[1:], strict=True))


@dataclass(frozen=True)
class Name:
    """A name with all numbers that may be indices taken out."""

    template: str
    values: tuple[str, ...]


def fold(
    shapes: Shapes, level: str = "all", labels: Mapping[str, str] | None = None
) -> list[Family]:
    """Return the tensors of SHAPES as families.

    A number that is a segment of its own may be an index; so may one within a segment
    (``block_3.attn.q``) if the blocks are counted from 0.

    Args:
        shapes: shape by name, in the order of declaration.
        level: ``all``; ``segments``, numbers that are segments only; or ``none``.
        labels: see :class:`Family`.

    >>> [f.indices for f in fold({"h.0.w": (2, 3), "h.1.w": (2, 3), "out.w": (3,)})]
    [(('0', '1'),), ()]
    """
    groups: dict[tuple[str, str], list[tuple[str, Name]]] = {}
    counted = containers(shapes) if level == "all" else frozenset()
    for name in shapes:
        parsed = take_apart(name, counted) if level != "none" else Name(name, ())
        groups.setdefault((parsed.template, (labels or {}).get(name, "")), []).append(
            (name, parsed)
        )
    places = {name: at / max(1, len(shapes) - 1) for at, name in enumerate(shapes)}
    found = [
        family
        for (_, label), members in groups.items()
        for family in families_of(members, shapes, label, places)
    ]
    return sorted(found, key=lambda family: family.place)


def containers(shapes: Shapes) -> frozenset[str]:
    """Return the beginnings of names, up to a number, at which the numbers count from 0."""
    seen: dict[str, set[int]] = {}
    for name in shapes:
        for start, number, _ in numbers(name):
            seen.setdefault(start, set()).add(int(number))
    return frozenset(s for s, at in seen.items() if len(at) > 1 and at == set(range(len(at))))


def numbers(name: str) -> Iterator[tuple[str, str, bool]]:
    r"""Yield the numbers of NAME's modules: what stands before each, the number, and whether it is a segment.

    >>> list(numbers("h.3.fc1.weight"))
    [('h.', '3', True), ('h.\x00.fc', '1', False)]
    """
    for found in NUMBER.finditer(name, 0, name.rfind(".") + 1):
        alone = name[found.start() - 1 : found.start()] in ("", ".") and name[found.end()] == "."
        yield NUMBER.sub(HOLE, name[: found.start()]), found[0], alone


def take_apart(name: str, counted: frozenset[str]) -> Name:
    """Return NAME with its indices taken out.

    >>> take_apart("h.3.fc1.weight", frozenset()).values
    ('3',)
    """
    values: list[str] = []

    def hole(found: re.Match[str]) -> str:
        start, number, alone = next(known)
        if not alone and start not in counted:
            return found[0]
        values.append(number)
        return HOLE

    known, end = numbers(name), name.rfind(".") + 1
    template = NUMBER.sub(hole, name[:end]) + name[end:]
    return Name(template, tuple(values))


def families_of(
    members: list[tuple[str, Name]], shapes: Shapes, label: str, places: Mapping[str, float]
) -> Iterator[Family]:
    """Fold MEMBERS, which have one template, over as many indices as they allow."""
    depth = len(members[0][1].values)
    for count in range(depth, -1, -1):
        for kept in combinations(range(depth), count):
            made = folded(members, shapes, frozenset(kept))
            if made is not None:
                for names, template, indices in made:
                    yield Family(template, indices, shapes[names[0]], label, places[names[0]])
                return


Folded = list[tuple[list[str], str, tuple[tuple[str, ...], ...]]]


def folded(members: list[tuple[str, Name]], shapes: Shapes, kept: frozenset[int]) -> Folded | None:
    """Fold MEMBERS over the indices KEPT; ``None`` unless each fold is a full grid of one shape."""
    groups: dict[str, list[tuple[str, Name]]] = {}
    for name, parsed in members:
        values = [HOLE if at in kept else value for at, value in enumerate(parsed.values)]
        groups.setdefault(fill(parsed.template, values), []).append((name, parsed))
    result = []
    for template, group in groups.items():
        rows = [tuple(parsed.values[at] for at in sorted(kept)) for _, parsed in group]
        indices = tuple(tuple(sorted(set(column), key=int)) for column in zip(*rows, strict=True))
        if len({shapes[name] for name, _ in group}) > 1 or prod(map(len, indices)) != len(group):
            return None
        if any(len(column) < 2 for column in indices):
            return None
        result.append(([name for name, _ in group], template, indices))
    return result
