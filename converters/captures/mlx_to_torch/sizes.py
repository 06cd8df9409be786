"""Sizes that vary: whole numbers as sums of products of named sizes, found from several traces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

STEPS = (3, 7)  # by how much sizes differ between traces: in odd steps, so that halves show


@dataclass(frozen=True)
class Size:
    """A whole number made of named sizes: the sum of its terms.

    >>> Size(((2, ("batch", "length")), (1, ()))).at({"batch": 3, "length": 5})
    31
    """

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Return the number where named sizes are SIZES."""
        return sum(
            factor * math.prod(sizes[name] for name in names) for factor, names in self.terms
        )


def resolved(value: Any, sizes: Mapping[str, Any]) -> Any:
    """Return VALUE, lists and all, with numbers in place of Sizes."""
    if isinstance(value, Size):
        return value.at(sizes)
    return [resolved(it, sizes) for it in value] if isinstance(value, list | tuple) else value


def points(example: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the sizes to trace at: those of the EXAMPLE, each larger in turn, and all larger still.

    >>> points({"batch": 2})
    [{'batch': 2}, {'batch': 5}, {'batch': 9}]
    """
    if not example:
        return [{}]
    near, far = STEPS
    corners = itertools.product(*[(size, size + near) for size in example.values()])
    listed = [dict(zip(example, corner, strict=True)) for corner in corners]
    return [*listed, {name: size + far for name, size in example.items()}]


class Fit:
    """Finds which Size has given values at the points of several traces."""

    def __init__(self, traced: Sequence[Mapping[str, int]]) -> None:
        names = list(traced[0])
        chosen = [it for n in range(len(names) + 1) for it in itertools.combinations(names, n)]
        self.products = tuple(chosen)
        self.table = np.array(
            [[math.prod(at[name] for name in product) for product in chosen] for at in traced],
            float,
        )
        self.observed: dict[str, tuple[int, ...]] = {}

    def __call__(self, values: Sequence[int]) -> int | Size | None:
        """Return what is VALUES at the points; ``None`` if nothing known is."""
        if len(set(values)) == 1:
            return values[0]
        if (found := self._polynomial(values)) is not None:
            return found
        for name, sizes in self.observed.items():
            rest = {value - size for value, size in zip(values, sizes, strict=True)}
            if len(rest) == 1:
                return Size(((1, (name,)), *(((c, ()),) if (c := rest.pop()) else ())))
            pairs = list(zip(values, sizes, strict=True))
            if all(size and value % size == 0 for value, size in pairs):
                factor = self._polynomial([value // size for value, size in pairs])
                if factor is not None:
                    return Size(tuple((n, (*names, name)) for n, names in factor.terms))
        return None

    def observe(self, name: str, values: Sequence[int]) -> None:
        """Remember that a size called NAME, read from a tensor, has VALUES at the points."""
        self.observed[name] = tuple(values)

    def _polynomial(self, values: Sequence[int]) -> Size | None:
        solution = np.linalg.lstsq(self.table, np.array(values, float), rcond=None)[0]
        factors = [round(it) for it in solution]
        if not np.array_equal(self.table @ np.array(factors, float), np.array(values, float)):
            return None
        return Size(tuple((n, it) for n, it in zip(factors, self.products, strict=True) if n))
