"""``sources => targets by program``: a rule that mostly has no way back but the original."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ..notation.rules import Pairing, Term, repeated, where_text
from .preimages import way
from .programs import Program

TURNED: Final = {"=>": "<=", "<=": "=>"}
NOTHING: Final = Program(())


@dataclass(frozen=True)
class Computed(Pairing):
    """``left => right by program``, or written from the other side, ``left <= right by program``.

    Names pair up as those of any rule do. A program is written for tensors of one shape, so a name
    has neither axes nor changes of value. A capture that stands in every name that the program
    starts from, and in none that it makes, is the index of a family: the program is run once for
    each index, and its results are stacked along a new first axis.

    Attributes:
        program: how the targets are computed.
        arrow: ``=>`` where the left side is what the program starts from, ``<=`` where the right
            one is, so that nothing can be made of the left one.
    """

    program: Program = NOTHING
    arrow: str = "=>"

    def __str__(self) -> str:
        marker = f"{self.marker} " if self.marker else ""
        left, right = (", ".join(map(str, side)) for side in (self.left, self.right))
        steps = ";\n       ".join(map(str, self.program.steps))
        head = f"{marker}{left} {self.arrow} {right}"
        return f"{head}\n    by {steps}{where_text(self.where)}"

    @cached_property
    def renames_only(self) -> bool:
        """Never: the tensors change."""
        return False

    @cached_property
    def keeps_layout(self) -> bool:
        """Never: the tensors change."""
        return False

    @cached_property
    def indices(self) -> frozenset[str]:
        """The captures of the names that the program starts from, and of none that it makes."""
        sources, targets = (
            {capture.name for term in side for capture in term.name.captures}
            for side in ((self.left, self.right) if self.forward else (self.right, self.left))
        )
        return frozenset(sources - targets)

    @property
    def forward(self) -> bool:
        """Whether the left side is what the program starts from."""
        return self.arrow == "=>"

    @cached_property
    def undoable(self) -> bool:
        """Whether the program takes each number by itself, so that what it was can be sought."""
        sides = len(self.left), len(self.right)
        return sides == (1, 1) and not self.indices and way(self.program) is not None

    def inverse(self) -> Computed:
        """Return the rule as it reads from the other side."""
        return replace(self, left=self.right, right=self.left, arrow=TURNED[self.arrow])

    def _layout_flaws(self) -> Iterator[str]:
        for term in self.terms:
            if term != Term(term.name):
                yield f"{term.name}: a name of a program takes no axes and no change of value"
        yield from repeated(self)

    def _flaws(self, defined: frozenset[str]) -> Iterator[str]:
        yield from super()._flaws(defined)
        yield from self._family_flaws()
        sides = (self.left, self.right) if self.forward else (self.right, self.left)
        if flaw := self.program.flaw(*map(len, sides)):
            yield flaw

    def _family_flaws(self) -> Iterator[str]:
        if len(self.indices) > 1:
            yield f"a program runs along one index, not {', '.join(sorted(self.indices))}"
        for term in self.left if self.forward else self.right:
            for name in sorted(self.indices - {capture.name for capture in term.name.captures}):
                yield f"{term.name} has no {{{name}}}, which the program runs along"
