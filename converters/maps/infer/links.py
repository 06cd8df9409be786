"""From pairs of parts to rules: which tensors, with which axes, make which others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from ....errors import UnsupportedError
from .families import Family, fill
from .parts import Cut, Part

LETTERS: Final = "abcdfglo"  # axes that are not cut
PIECES: Final = "pqrstuvwxyz"  # pieces of one that is
STACK: Final = ("e", "E")  # captures that are axes
HEADS: Final = "h"


class Resolved(NamedTuple):
    """A pair whose layout is chosen.

    Attributes:
        left: of torch.
        right: of the candidate.
        way: for every one of ``left.places`` the place in RIGHT.
        proof: ``value``, ``outputs``, ``shape`` or ``guess``.
        note: what a reader should know of it.
        change: what the candidate's values differ by, as text.
    """

    left: Part
    right: Part
    way: tuple[int, ...]
    proof: str
    note: str = ""
    change: str = ""


class Term(NamedTuple):
    """A tensor of a link; its name may hold captures that are axes."""

    name: str
    axes: tuple[str, ...]

    def text(self, *, plain: bool) -> str:
        """Print it as in a map, without axes if PLAIN."""
        return self.name if plain else f"{self.name} [{' '.join(self.axes)}]"


@dataclass(frozen=True)
class Link:
    """One instance of a rule.

    Attributes:
        left: terms of torch.
        right: terms of the candidate.
        where: definitions, as text.
        change: what the right values differ by, as text.
        proof: as in :class:`Resolved`.
        note: as there.
    """

    left: tuple[Term, ...]
    right: tuple[Term, ...]
    where: tuple[str, ...] = ()
    change: str = ""
    proof: str = "guess"
    note: str = ""

    @property
    def plain(self) -> bool:
        """Whether the tensor keeps its layout."""
        return len(self.left) == len(self.right) == 1 and self.left[0].axes == self.right[0].axes


def links_of(resolved: Sequence[Resolved]) -> list[Link]:
    """Return the links of all pairs; the pieces of a tensor that is cut become one.

    Raises:
        UnsupportedError: two tensors are cut into each other.
    """
    groups: dict[tuple[int, Family], list[Resolved]] = {}
    for pair in resolved:
        if pair.left.cut and pair.right.cut:
            raise UnsupportedError(
                f"{shown(pair.left)} and {shown(pair.right)} share only a piece: no rule says that;"
                " write this one by hand (--map)"
            )
        side = int(pair.right.cut is not None)
        family = (pair.left, pair.right)[side].family
        groups.setdefault((side, family), []).append(pair)
    return [link for (side, _), group in groups.items() for link in Hub(side, group).links()]


def shown(part: Part) -> str:
    """Return a part's name with stars for indices."""
    name = fill(part.family.template, ["*"] * len(part.family.counts))
    return f"{name} (piece {part.at + 1})" if part.cut else name


class Hub:
    """One family, cut or whole, and what it is made of on the other side.

    Attributes:
        side: 0 if the hub is of torch, 1 if of the candidate.
        pairs: one for each piece, in order.
    """

    def __init__(self, side: int, pairs: Sequence[Resolved]) -> None:
        self.side = side
        self.pairs = sorted(pairs, key=lambda pair: (pair.left, pair.right)[side].at)
        self.part = self.hub(self.pairs[0])
        self.family = self.part.family
        self.spokes = [(pair.left, pair.right)[1 - side] for pair in self.pairs]
        self.onto = [self.to_hub(pair) for pair in self.pairs]
        self.names = self.name_axes()

    def hub(self, pair: Resolved) -> Part:
        """Return the hub's part of PAIR."""
        return (pair.left, pair.right)[self.side]

    def to_hub(self, pair: Resolved) -> dict[int, int]:
        """Return the hub's place by place of the spoke."""
        ways = zip(pair.left.places, pair.way, strict=True)
        return {b: a for a, b in ways} if self.side == 0 else dict(ways)

    @property
    def cut(self) -> Cut | None:
        """How the hub is cut."""
        return self.part.cut

    @property
    def cut_place(self) -> int | None:
        """Which of the hub's dimensions is cut."""
        return len(self.family.counts) + self.cut.axis if self.cut else None

    def name_axes(self) -> dict[int, str]:
        """Return a name for each of the hub's dimensions that is an axis on either side."""
        letters, stacks, names = iter(LETTERS), iter(STACK), {}
        for place, size in enumerate(self.part.sizes):
            kinds = {
                self.spokes[at].is_index(mine)
                for at, onto in enumerate(self.onto)
                for mine, theirs in onto.items()
                if theirs == place
            }
            mixed = kinds != {self.part.is_index(place)}
            if size == 1 and place != self.cut_place:
                names[place] = "1"
            elif mixed and place != self.cut_place:
                names[place] = next(stacks)
            elif not self.part.is_index(place):
                names[place] = next(letters)
        return names

    def whole(self) -> str:
        """Return the axis that is cut, as text."""
        assert self.cut  # noqa: S101
        total = f"({' + '.join(PIECES[: len(self.cut.sizes)])})"
        return f"({HEADS} {total})" if self.cut.heads > 1 else total

    def slice(self, at: int) -> str:
        """Return the same axis of spoke AT."""
        assert self.cut  # noqa: S101
        return f"({HEADS} {PIECES[at]})" if self.cut.heads > 1 else PIECES[at]

    def hub_axes(self) -> tuple[str, ...]:
        """Return the axes of the hub's tensors."""
        first = len(self.family.counts)
        return tuple(
            self.whole() if place == self.cut_place else self.names[place]
            for place in range(first, len(self.part.sizes))
        )

    def spoke_axes(self, at: int) -> tuple[str, ...]:
        """Return the axes of the tensors of spoke AT."""
        spoke, onto = self.spokes[at], self.onto[at]
        places = range(len(spoke.family.counts), len(spoke.sizes))
        cut = self.cut_place
        alone = (
            cut is not None and cut not in onto.values()
        )  # a piece of size 1 has no place of its own
        axes = []
        for place in places:
            target = onto.get(place)
            if target is None and alone:
                axes.append(self.slice(at))
                alone = False
            elif target is None:
                axes.append("1")
            else:
                axes.append(self.slice(at) if target == cut else self.names[target])
        return tuple(axes)

    def where(self) -> tuple[str, ...]:
        """Return the sizes of the pieces, which a shape does not tell."""
        if self.cut is None:
            return ()
        heads = self.cut.heads
        sizes = [f"{PIECES[at]} = {size // heads}" for at, size in enumerate(self.cut.sizes)]
        return (*([f"{HEADS} = {heads}"] if heads > 1 else []), *sizes)

    def links(self) -> Iterator[Link]:
        """Yield a link for every value of the indices that both sides have in their names."""
        counts = self.family.counts
        free = [place for place in range(len(counts)) if place not in self.names]
        proof = weakest([pair.proof for pair in self.pairs])
        change = self.pairs[0].change
        notes = "; ".join(dict.fromkeys(pair.note for pair in self.pairs if pair.note))
        for at in product(*(range(counts[place]) for place in free)):
            chosen = dict(zip(free, at, strict=True))
            hub = Term(self.hub_name(chosen), self.hub_axes())
            spokes = tuple(
                Term(self.spoke_name(number, chosen), self.spoke_axes(number))
                for number in range(len(self.spokes))
            )
            left, right = ((hub,), spokes) if self.side == 0 else (spokes, (hub,))
            yield Link(left, right, self.where(), change, proof, notes)

    def hub_name(self, chosen: Mapping[int, int]) -> str:
        """Return the hub's name for the values CHOSEN, captures elsewhere."""
        values = [
            self.family.indices[place][chosen[place]]
            if place in chosen
            else capture(self.family.indices[place], self.names[place])
            for place in range(len(self.family.counts))
        ]
        return fill(self.family.template, values)

    def spoke_name(self, number: int, chosen: Mapping[int, int]) -> str:
        """Return the name of a spoke, in the same way."""
        family, onto = self.spokes[number].family, self.onto[number]
        values = [
            family.indices[place][chosen[onto[place]]]
            if onto[place] in chosen
            else capture(family.indices[place], self.names[onto[place]])
            for place in range(len(family.counts))
        ]
        return fill(family.template, values)


def capture(values: Sequence[str], name: str) -> str:
    """Return a capture that is an axis.

    Raises:
        UnsupportedError: its VALUES do not run from 0.
    """
    if list(values) != [str(at) for at in range(len(values))]:
        raise UnsupportedError(
            f"indices {', '.join(values)} would become an axis, but do not run from 0;"
            " write this rule by hand (--map)"
        )
    return f"{{{name}}}"


STRENGTH: Final = ("guess", "shape", "outputs", "value")


def weakest(proofs: Sequence[str]) -> str:
    """Return the weakest of PROOFS.

    >>> weakest(["value", "guess"])
    'guess'
    """
    return min(proofs, key=STRENGTH.index)
