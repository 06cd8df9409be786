"""Up to which sizes a recording holds: modules decide by sizes, as ``min(length, 512)`` does.

They decide by a product or a sum of two sizes as well, as ``batch * length > 1000``. Sizes up to which a recording
holds are looked for along lines, and what explains all that was found is its limit.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from ....errors import UnsupportedError
from .merging import CURE, at

Sizes = Mapping[str, int]

TOGETHER: Final[Mapping[str, Callable[[int, int], float]]] = {
    "*": operator.mul,
    "+": operator.add,
    "-": operator.sub,
    "/": operator.truediv,
}


class Measure(NamedTuple):
    """A size, or what two sizes make.

    >>> measure = Measure(("batch", "length"), "*")
    >>> str(measure), measure.of({"batch": 2, "length": 5})
    ('batch * length', 10)
    """

    names: tuple[str, ...]
    sign: str = ""

    def of(self, sizes: Sizes) -> float:
        """Return it where named sizes are SIZES."""
        known = [sizes[name] for name in self.names]
        return TOGETHER[self.sign](*known) if self.sign else known[0]

    def __str__(self) -> str:
        return f" {self.sign} ".join(self.names)


class Limit(NamedTuple):
    """The smallest and the largest value at which a recording holds; ``None`` where none was found."""

    measure: Measure
    least: float | None
    largest: float | None

    def passed(self, sizes: Sizes) -> float | None:
        """Return the limit that SIZES lie beyond, ``None`` if they are within both."""
        value = self.measure.of(sizes)
        if self.least is not None and value < self.least:
            return self.least
        return self.largest if self.largest is not None and value > self.largest else None


class Edge(NamedTuple):
    """Sizes at which a recording holds, and those one step on, at which it does not."""

    inside: Sizes
    outside: Sizes


def explained(edges: Sequence[Edge], holding: Collection[Sizes]) -> dict[str, Limit]:
    """Return by name the fewest limits that keep all sizes HOLDING and none outside of EDGES.

    >>> holding = [{"n": 2, "m": 500}, {"n": 1, "m": 1000}]
    >>> list(explained([Edge(it, {**it, "m": it["m"] + 1}) for it in holding], holding))
    ['n * m']

    Raises:
        UnsupportedError: no size and no two sizes together tell the ones from the others.
    """
    found: dict[str, Limit] = {}
    while edges:
        measure, below, explains = max(
            (
                (measure, below, explains)
                for measure in _measures([*edges[0].inside])
                for below in (False, True)
                for explains in [_beyond(measure, below, edges, holding)]
            ),
            key=lambda it: len(it[-1]),
        )
        if not explains:
            inside, outside = edges[0]
            raise UnsupportedError(
                f"the module computes different things at {at(inside)} and at {at(outside)}, by more than"
                f" one size or two together: {CURE}"
            )
        limit = found.get(str(measure), Limit(measure, None, None))
        end = _end(measure, below, holding)
        least, largest = (end, limit.largest) if below else (limit.least, end)
        found[str(measure)] = Limit(measure, least, largest)
        edges = [it for it in edges if it not in explains]
    return found


def _measures(names: Sequence[str]) -> list[Measure]:
    """Return what a module may decide by, the simplest first."""
    pairs = [Measure(pair, sign) for pair in itertools.combinations(names, 2) for sign in TOGETHER]
    return [Measure((name,)) for name in names] + pairs


def _beyond(
    measure: Measure, below: bool, edges: Sequence[Edge], holding: Collection[Sizes]
) -> list[Edge]:
    """Return those of EDGES whose outside lies beyond all sizes HOLDING."""
    end = _end(measure, below, holding)
    passed = operator.lt if below else operator.gt
    return [it for it in edges if passed(measure.of(it.outside), end)]


def _end(measure: Measure, below: bool, holding: Collection[Sizes]) -> float:
    return (min if below else max)(measure.of(it) for it in holding)
