"""Up to which sizes a recording holds: modules decide by sizes, as ``min(length, 512)`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ....errors import UnsupportedError
from .graph import Graph
from .merging import fits_traced, merged
from .sizes import points

FAR: Final = (256, 4096)  # sizes at which it is looked whether the module computes the same
BRANCHES: Final = 3  # how many branches of the same values are followed in one direction

Sizes = Mapping[str, int]


class Limit(NamedTuple):
    """The smallest and the largest size at which a recording holds; ``None`` where none was found."""

    least: int | None
    largest: int | None

    def passed(self, size: int) -> int | None:
        """Return the limit that SIZE lies beyond, ``None`` if it is within both."""
        if self.least is not None and size < self.least:
            return self.least
        return self.largest if self.largest is not None and size > self.largest else None


class Search(NamedTuple):
    """How limits are looked for.

    Attributes:
        trace: gives the graph of the module at sizes.
        same: says whether the recording gives what MLX gives at sizes.
        example: the sizes of the example.
    """

    trace: Callable[[Sizes], Graph]
    same: Callable[[Sizes], bool]
    example: Sizes

    def limits(self, whole: Graph) -> dict[str, Limit]:
        """Return the limits of those sizes that have one; WHOLE is the graph before it is simplified."""
        found = {
            name: Limit(self._least(name, whole), self._largest(name, whole))
            for name in self.example
        }
        return {name: it for name, it in found.items() if it != (None, None)}

    def _largest(self, name: str, whole: Graph) -> int | None:
        """Return the largest size NAME before the module computes other values."""
        base: Sizes = self.example
        for _ in range(BRANCHES):
            far = [size for size in FAR if size > base[name]]
            last = self._last(name, base, whole, far)
            if last is None:
                return None
            base = {**base, name: last + 1}
            if not (self.same(base) and self.same({**base, name: 2 * last})):
                return last
            try:
                whole = merged([self.trace(it) for it in points(base)], points(base))
            except UnsupportedError:
                return last
        return last

    def _least(self, name: str, whole: Graph) -> int | None:
        """Return the smallest size NAME down to which the module computes the same values."""
        far = [1] if self.example[name] > 1 else []
        last = self._last(name, self.example, whole, far)
        if last is None:
            return None
        beyond = [{**self.example, name: size} for size in {last - 1, 1}]
        return None if all(map(self.same, beyond)) else last

    def _last(self, name: str, base: Sizes, whole: Graph, far: Sequence[int]) -> int | None:
        """Return the last size NAME from BASE through FAR that WHOLE holds at; ``None`` if it is all."""
        held = base[name]
        for size in far:
            if (holds := self._holds(whole, {**base, name: size})) is False:
                return self._between(name, base, whole, held, size)
            held = size if holds else held
        return None

    def _between(self, name: str, base: Sizes, whole: Graph, held: int, beyond: int) -> int:
        """Return the last size NAME that WHOLE holds at, from one HELD to one BEYOND."""
        while abs(beyond - held) > 1:
            middle = (held + beyond) // 2
            if self._holds(whole, {**base, name: middle}):
                held = middle
            else:
                beyond = middle
        return held

    def _holds(self, whole: Graph, sizes: Sizes) -> bool | None:
        """Say whether WHOLE is the module at SIZES too; ``None`` if it cannot be traced there."""
        try:
            return fits_traced(self.trace(sizes), whole, sizes)
        except UnsupportedError:
            return None
