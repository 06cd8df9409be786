"""What is paired: a family, or a piece of one that holds several tensors of the other side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod
from typing import NamedTuple, TypeAlias

from .families import Family

Key: TypeAlias = tuple[tuple[int, ...], str]  # sizes in order, 1 left out, and the label


class Cut(NamedTuple):
    """How an axis is made of others, end to end.

    Attributes:
        axis: of the tensor's shape.
        sizes: of the pieces, in order.
        heads: how often the pieces take turns; 1 where each lies in one place.
    """

    axis: int
    sizes: tuple[int, ...]
    heads: int = 1


Cuts: TypeAlias = Mapping[Family, Cut]


@dataclass(frozen=True)
class Part:
    """A family, or the piece number AT of one that is cut."""

    family: Family
    cut: Cut | None = None
    at: int = 0

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The size of every dimension, indices first, 1 included."""
        sizes = list(self.family.stacked)
        if self.cut:
            sizes[len(self.family.counts) + self.cut.axis] = self.cut.sizes[self.at]
        return tuple(sizes)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The dimensions whose size is not 1."""
        return tuple(place for place, size in enumerate(self.sizes) if size != 1)

    @cached_property
    def key(self) -> Key:
        """What it has in common with every part that could be the same tensor."""
        return key_of(self.sizes, self.family.label)

    def is_index(self, place: int) -> bool:
        """Say whether the dimension at PLACE is an index in the name."""
        return place < len(self.family.counts)


def key_of(sizes: Sequence[int], label: str) -> Key:
    """Return the key of a part with SIZES.

    >>> key_of((3, 1, 2), "")
    ((2, 3), '')
    """
    return tuple(sorted(size for size in sizes if size != 1)), label


def parts_of(families: Sequence[Family], cuts: Cuts) -> list[Part]:
    """Return the parts of FAMILIES, those in CUTS piece by piece."""
    return [
        part
        for family in families
        for part in (
            [Part(family, cuts[family], at) for at in range(len(cuts[family].sizes))]
            if family in cuts
            else [Part(family)]
        )
    ]


def alignments(left: Part, right: Part, most: int = 24) -> list[tuple[int, ...]]:
    """Return the ways to align LEFT's dimensions with RIGHT's, the likeliest first.

    Each gives, for every one of ``left.places``, the place in RIGHT.
    """
    mine: dict[int, list[int]] = {}
    theirs: dict[int, list[int]] = {}
    for part, found in ((left, mine), (right, theirs)):
        for place in part.places:
            found.setdefault(part.sizes[place], []).append(place)
    if {s: len(p) for s, p in mine.items()} != {s: len(p) for s, p in theirs.items()}:
        return []
    sizes = sorted(mine)
    if prod(prod(range(1, len(mine[size]) + 1)) for size in sizes) > 1000:
        choices = [[tuple(theirs[size])] for size in sizes]
    else:
        choices = [list(permutations(theirs[size])) for size in sizes]
    ways = []
    for chosen in product(*choices):
        to = {
            p: q
            for size, row in zip(sizes, chosen, strict=True)
            for p, q in zip(mine[size], row, strict=True)
        }
        ways.append(tuple(to[place] for place in left.places))
    return sorted(ways, key=lambda way: strangeness(left, right, way))[:most]


def strangeness(left: Part, right: Part, way: tuple[int, ...]) -> float:
    """Return how far an alignment is from what ports do: indices stay, axes keep their order.

    A convolution's channels come last in MLX.
    """
    pairs = list(zip(left.places, way, strict=True))
    indices = [(a, b) for a, b in pairs if left.is_index(a) and right.is_index(b)]
    mixed = sum(left.is_index(a) != right.is_index(b) for a, b in pairs)
    axes = [b for a, b in pairs if not left.is_index(a) and not right.is_index(b)]
    last = axes[:1] + axes[2:] + axes[1:2]
    convolves = len(left.family.shape) > 2 and not mixed
    turned = float(inversions(axes))
    if convolves:
        turned = min(inversions(last), 0.5 + turned)
    return 10.0 * inversions([b for _, b in indices]) + mixed + 0.2 * turned


def inversions(places: Sequence[int]) -> int:
    """Return how many pairs of PLACES stand in the wrong order.

    >>> inversions([2, 0, 1])
    2
    """
    return sum(a > b for at, a in enumerate(places) for b in places[at + 1 :])
