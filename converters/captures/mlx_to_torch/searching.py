"""Along which sizes a recording is compared with other traces, and with what MLX computes there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from ....errors import UnsupportedError
from .graph import Graph
from .limits import Edge, Limit, Sizes, explained
from .merging import fits_traced, merged
from .sizes import points

FAR: Final = (256, 4096)  # sizes at which it is looked whether the module computes the same
BETWEEN: Final = 64  # a size of one for which another is searched again, where both decide together
BRANCHES: Final = 3  # how many branches of the same values are followed in one direction
MOST: Final = 2**14  # product of the sizes at which a module is run


class Search:
    """Looks for the limits of a recording.

    Args:
        trace: gives the graph of the module at sizes.
        same: says whether the recording gives what MLX gives at sizes.
        example: the sizes of the example.
        whole: the graph of the recording before it is simplified.
    """

    def __init__(
        self,
        trace: Callable[[Sizes], Graph],
        same: Callable[[Sizes], bool],
        example: Sizes,
        whole: Graph,
    ) -> None:
        self.trace, self.example = trace, example
        self.compare = same
        self.graphs = [whole]  # what the module computes, by the same values at least
        self.seen: dict[tuple[int, ...], bool | None] = {}
        self.edges: list[Edge] = []

    def limits(self) -> dict[str, Limit]:
        """Return the limits, by the name of what they limit.

        Raises:
            UnsupportedError: the module decides by its sizes in a way that no limit tells.
        """
        reached = {name: self._line(name, self.example) for name in self.example}
        pairs = [*itertools.permutations(self.example, 2)]
        for name, other in pairs:
            for size in {1: None, reached[other]: None}.keys() - {self.example[other]}:
                self._line(name, {**self.example, other: size})
        if self.edges:
            for name, other in pairs:
                self._line(
                    name, {**self.example, other: min(BETWEEN, reached[other])}, (BETWEEN, *FAR)
                )
        holding = [
            dict(zip(self.example, sizes, strict=True)) for sizes, it in self.seen.items() if it
        ]
        return explained(self.edges, holding)

    def _line(self, name: str, base: Sizes, far: Sequence[int] = FAR) -> int:
        """Look along size NAME from BASE, down and through FAR; return the largest that holds."""
        if not self._starts(name, base):
            return base[name]
        self._end(name, base, [1] if base[name] > 1 else [])
        return self._end(name, base, [size for size in far if size > base[name]])

    def _starts(self, name: str, base: Sizes) -> bool:
        """Say whether the recording holds at BASE, by a branch of the same values too."""
        if self._holds(base) is not False:
            return True
        return self._same(base) and self._follow(name, base)

    def _end(self, name: str, base: Sizes, far: Sequence[int]) -> int:
        """Return the last size NAME from BASE through FAR that holds; note what is beyond it."""
        held, branches = base[name], BRANCHES
        for size in far:
            while self._holds({**base, name: size}) is False:
                held, branches = self._between(name, base, held, size), branches - 1
                beyond = {**base, name: held + (1 if size > held else -1)}
                same = self._same(beyond) and self._same(
                    {**base, name: max(1, 2 * (size > held) * held)}
                )
                if same and size < held:
                    return held
                if not (same and branches and self._follow(name, beyond)):
                    self.edges.append(Edge({**base, name: held}, beyond))
                    return held
            held = size if self._holds({**base, name: size}) else held
        return held

    def _same(self, sizes: Sizes) -> bool:
        """Say whether the recording gives what MLX gives at SIZES that are not too large to run."""
        return math.prod(sizes.values()) <= MOST and self.compare(sizes)

    def _follow(self, name: str, base: Sizes) -> bool:
        """Say whether the module is one graph around BASE, along NAME at least, and know it from now on."""
        for varying in (base, {name: base[name]}):
            traced = [{**base, **it} for it in points(varying)]
            try:
                self.graphs.append(merged([self.trace(it) for it in traced], traced))
            except UnsupportedError:
                continue
            self.seen = {sizes: it for sizes, it in self.seen.items() if it is not False}
            return True
        return False

    def _between(self, name: str, base: Sizes, held: int, beyond: int) -> int:
        """Return the last size NAME that holds, from one HELD to one BEYOND."""
        while abs(beyond - held) > 1:
            middle = (held + beyond) // 2
            if self._holds({**base, name: middle}):
                held = middle
            else:
                beyond = middle
        return held

    def _holds(self, sizes: Sizes) -> bool | None:
        """Say whether a known graph is the module at SIZES too; ``None`` if it cannot be traced there."""
        key = tuple(sizes[name] for name in self.example)
        if key not in self.seen:
            self.seen[key] = self._fits(sizes)
        return self.seen[key]

    def _fits(self, sizes: Sizes) -> bool | None:
        try:
            graph = self.trace(sizes)
        except UnsupportedError:
            return None
        return any(fits_traced(graph, known, sizes) for known in self.graphs)
