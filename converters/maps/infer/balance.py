"""Which tensors must be several of the other side, so that both sides have the same pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from .families import Family
from .parts import Cut, Key, key_of

MOST_PIECES = 8
MOST_FOUND = 24
PATIENCE = 4000  # states looked at; each is a set of cuts


class Balance(NamedTuple):
    """The cuts of both sides."""

    left: dict[Family, Cut]
    right: dict[Family, Cut]


def balances(left: Sequence[Family], right: Sequence[Family]) -> list[Balance]:
    """Return sets of cuts after which LEFT and RIGHT have parts of the same sizes, the likeliest first.

    A tensor is cut where its own side has too many of its size, into sizes of which the other side
    has too many, the largest tensors first: nothing larger can hold them.
    """
    search = Search((list(left), list(right)))
    search.run()
    found = [Balance(*cuts) for cuts in search.found]
    return sorted(found, key=lambda b: sum(len(c.sizes) for side in b for c in side.values()))


@dataclass
class Search:
    """A search for cuts, depth first.

    Attributes:
        families: of both sides.
        cuts: those that are chosen now, per side.
        found: the sets of cuts that balance both sides.
        left: states that may still be looked at.
    """

    families: tuple[list[Family], list[Family]]
    cuts: tuple[dict[Family, Cut], dict[Family, Cut]] = field(default_factory=lambda: ({}, {}))
    found: list[tuple[dict[Family, Cut], dict[Family, Cut]]] = field(default_factory=list)
    left: int = PATIENCE

    def counts(self, side: int) -> Counter[Key]:
        """Count the parts of a SIDE by key."""
        counted: Counter[Key] = Counter()
        for family in self.families[side]:
            cut = self.cuts[side].get(family)
            for size in cut.sizes if cut else (None,):
                counted[key_of(cut_sizes(family, cut, size), family.label)] += 1
        return counted

    def run(self) -> None:
        """Find sets of cuts that balance both sides."""
        self.left -= 1
        counts = self.counts(0), self.counts(1)
        spare = counts[0] - counts[1], counts[1] - counts[0]
        if not spare[0] and not spare[1] and self.cuts not in self.found:
            self.found.append((dict(self.cuts[0]), dict(self.cuts[1])))
        if not (spare[0] or spare[1]) or self.left < 0 or len(self.found) >= MOST_FOUND:
            return
        largest = max((*spare[0], *spare[1]), key=lambda key: (prod(key[0]), key))
        side = int(largest in spare[1])
        for family, cut in self.options(side, largest, spare[1 - side]):
            self.cuts[side][family] = cut
            self.run()
            del self.cuts[side][family]

    def options(self, side: int, key: Key, wanted: Counter[Key]) -> list[tuple[Family, Cut]]:
        """Return the cuts of families with KEY into WANTED sizes, the likeliest first."""
        families = [
            family
            for family in self.families[side]
            if family not in self.cuts[side] and key_of(family.stacked, family.label) == key
        ]
        found = [(family, cut) for family in families for cut in possible(family, wanted)]
        return sorted(found, key=lambda option: self.rank(side, *option))

    def rank(self, side: int, family: Family, cut: Cut) -> tuple[int, int, int]:
        """Rank a cut: as the module's other tensors are cut, along the first axis, few pieces."""
        beside = [
            sorted(other.sizes)
            for known, other in self.cuts[side].items()
            if known.modules[:1] == family.modules[:1]
        ]
        return (0 if sorted(cut.sizes) in beside else 1, cut.axis, len(cut.sizes))


def cut_sizes(family: Family, cut: Cut | None, size: int | None) -> list[int]:
    """Return FAMILY's sizes, SIZE in place of the axis that is CUT."""
    sizes = list(family.stacked)
    if cut and size is not None:
        sizes[len(family.counts) + cut.axis] = size
    return sizes


def possible(family: Family, wanted: Counter[Key]) -> Iterator[Cut]:
    """Yield the cuts of FAMILY into parts that are WANTED, each as often as it is at most."""
    for axis, length in enumerate(family.shape):
        free = {}
        for size in {size for sizes, _ in wanted for size in (*sizes, 1)}:
            key = key_of(cut_sizes(family, Cut(axis, ()), size), family.label)
            if size < length and wanted[key]:
                free[size] = wanted[key]
        for sizes in sums(length, sorted(free.items(), reverse=True), MOST_PIECES):
            yield Cut(axis, sizes)


def sums(total: int, free: list[tuple[int, int]], most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write TOTAL as a sum of at most MOST sizes, each used as often as it is FREE.

    >>> list(sums(64, [(32, 1), (16, 4)], 8))
    [(32, 16, 16), (16, 16, 16, 16)]
    """
    if total == 0:
        yield ()
    if total <= 0 or not free:
        return
    (size, count), *rest = free
    for times in range(min(count, total // size, most), -1, -1):
        for others in sums(total - times * size, rest, most - times):
            yield (size,) * times + others
