"""What llama.cpp's converter does to a tensor besides renaming it: few things, each by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from ..values import Array

Shape = tuple[int, ...]


class Wanted(NamedTuple):
    """What a rule has to make.

    Attributes:
        shape: its shape.
        heads: how many heads its rows belong to; ``None`` where they have none.
    """

    shape: Shape
    heads: int | None = None


class Rule(NamedTuple):
    """One thing that a tensor may undergo.

    Attributes:
        name: what messages call it.
        fits: whether it can make what is wanted of an array of a shape.
        act: makes what is wanted of an array.
        computes: whether numbers change, and do not only move.
        turns: whether columns become rows.
    """

    name: str
    fits: Callable[[Shape, Wanted], bool]
    act: Callable[[Array, Wanted], Array]
    computes: bool = False
    turns: bool = False

    @property
    def moves_rows(self) -> bool:
        """Whether each row it makes is a row that was there."""
        return not self.computes and not self.turns

    def rows_of(self, have: Shape, wanted: Wanted) -> Array:
        """Return which row of an array of the shape HAVE each row that is made is, from 0 on.

        All axes but the last are taken as one.

        >>> halves = next(rule for rule in RULES if rule.name == "second half")
        >>> halves.rows_of((2, 4, 8), Wanted((2, 2, 8))).tolist()
        [2, 3, 6, 7]
        """
        numbers = np.arange(math.prod(have[:-1])).reshape(*have[:-1], 1)
        found: Array = self.act(numbers, wanted).reshape(-1)
        return found


def interleaved(array: Array, heads: int) -> Array:
    """Return ARRAY with the two halves of each head's rows interleaved.

    transformers rotates the two halves of a head, llama.cpp neighbours
    (``LlamaModel.permute`` in its ``conversion/llama.py``).

    >>> interleaved(np.arange(8), 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    parts = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return parts.swapaxes(1, 2).reshape(array.shape)


def _same(have: Shape, wanted: Wanted) -> bool:
    return have == wanted.shape


def _has_heads(have: Shape, wanted: Wanted) -> bool:
    return have == wanted.shape and wanted.heads is not None and have[0] % (2 * wanted.heads) == 0


def _is_turned(have: Shape, wanted: Wanted) -> bool:
    return len(have) > 1 and _turned_shape(have) == wanted.shape


def _is_longer(have: Shape, wanted: Wanted) -> bool:
    return (
        len(have) == 2 == len(wanted.shape)
        and have[0] > wanted.shape[0]
        and have[1] == wanted.shape[1]
    )


def _is_double(have: Shape, wanted: Wanted) -> bool:
    *lead, rows, columns = (1, *wanted.shape)
    return len(have) > 1 and (1, *have) == (*lead, 2 * rows, columns)


def _is_double_turned(have: Shape, wanted: Wanted) -> bool:
    return len(have) > 1 and _is_double(_turned_shape(have), wanted)


def _turned_shape(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _turned(array: Array) -> Array:
    return array.swapaxes(-1, -2)


PARTS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "first half": lambda a: a[..., : a.shape[-2] // 2, :],
    "second half": lambda a: a[..., a.shape[-2] // 2 :, :],
    "even rows": lambda a: a[..., 0::2, :],
    "odd rows": lambda a: a[..., 1::2, :],
}


def _half(name: str, part: Callable[[Array], Array]) -> Rule:
    return Rule(name, _is_double, lambda a, _: part(a))


def _turned_half(name: str, part: Callable[[Array], Array]) -> Rule:
    return Rule(f"transposed, {name}", _is_double_turned, lambda a, _: part(_turned(a)), turns=True)


RULES: Final[tuple[Rule, ...]] = (
    Rule("same", _same, lambda a, _: a),
    Rule("heads interleaved", _has_heads, lambda a, wanted: interleaved(a, wanted.heads or 1)),
    Rule("plus one", _same, lambda a, _: a.astype(np.float32) + np.float32(1), computes=True),
    Rule("transposed", _is_turned, lambda a, _: _turned(a), turns=True),
    Rule("first rows", _is_longer, lambda a, wanted: a[: wanted.shape[0]]),
    *(_half(name, part) for name, part in PARTS.items()),
    *(_turned_half(name, part) for name, part in PARTS.items()),
)
