"""Which tensor is which, by what a candidate that was converted already holds.

The mark of a part is a hash of its values that no order of axes changes. Parts with one mark are one
tensor; how it lies is found by trying the orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from ....common.dtypes import NUMPY
from ....values import Array
from ..balance import Balance
from ..families import Family
from ..matching import classes
from ..parts import Part, parts_of
from .drawing import by_size, place, turns
from .probing import arrangements

Read = Callable[[str], Array]
MOST_ARRANGEMENTS: Final = 200
CHANGES: Final = ("", "+ 1")  # what a candidate may have added, as norms that start at 0 do


class Values(NamedTuple):
    """Tensors of one side.

    Attributes:
        read: a tensor by name.
        dtypes: safetensors codes by name.
    """

    read: Read
    dtypes: Mapping[str, str]


class Held(NamedTuple):
    """What values decided.

    Attributes:
        balance: how tensors are cut, the pieces in their order.
        pairs: for each part of torch (by place) the candidate's, its layout and its change.
        share: of the candidate's elements, how many are explained, from 0 to 1.
        hints: pairs of places whose values are the same, but also somebody else's.
    """

    balance: Balance
    pairs: dict[int, tuple[int, tuple[int, ...], str]]
    share: float
    hints: frozenset[tuple[int, int]] = frozenset()


def decide(
    left: Sequence[Family],
    right: Sequence[Family],
    balances: Sequence[Balance],
    values: tuple[Values, Values],
) -> Held | None:
    """Return what values decide in the arrangement that explains most; ``None`` if they decide nothing."""
    stores = Store(values[0]), Store(values[1])
    best: Held | None = None
    for at, balance in enumerate(arrangements(balances)):
        if at >= MOST_ARRANGEMENTS or (best and best.share == 1):
            break
        held = explain(left, right, balance, stores)
        if held.pairs and (best is None or held.share > best.share):
            best = held
    return best


class Store:
    """The parts of one side as arrays, and their marks."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.whole = cache(self._whole)
        self.mark = cache(self._mark)

    def _whole(self, family: Family) -> Array:
        """Return all tensors of FAMILY stacked, indices first."""
        return np.stack([self.values.read(name) for name in family.names()]).reshape(family.stacked)

    def array(self, part: Part) -> Array:
        """Return a part as float32, 1 included."""
        whole = self.whole(part.family)
        if part.cut is None:
            return np.asarray(whole)
        axis = len(part.family.counts) + part.cut.axis
        turn = whole.reshape(*whole.shape[:axis], part.cut.heads, -1, *whole.shape[axis + 1 :])
        sizes = [size // part.cut.heads for size in part.cut.sizes]
        start = sum(sizes[: part.at])
        piece = np.take(turn, range(start, start + sizes[part.at]), axis=axis + 1)
        return piece.reshape(part.sizes)

    def dtype(self, part: Part) -> str:
        """Return the dtype that a part is kept in."""
        return self.values.dtypes[next(part.family.names())]

    def _mark(self, part: Part, dtype: str, change: str) -> int:
        """Return the mark of a part once it is changed and kept in DTYPE."""
        return hashed(kept(self.array(part), dtype, change))


def kept(array: Array, dtype: str, change: str) -> Array:
    """Return ARRAY changed, rounded to DTYPE, as float32."""
    moved = array.astype(np.float32)
    moved = moved + np.float32(1) if change else moved
    return moved.astype(NUMPY[dtype]).astype(np.float32)


def hashed(array: Array) -> int:
    """Return a hash of the values of ARRAY that does not depend on their order.

    The sum of mixed bits (the finisher of splitmix64; Steele, Lea and Flood 2014).

    >>> hashed(np.array([1.0, 2.0], np.float32)) == hashed(np.array([2.0, 1.0], np.float32))
    True
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64).ravel()
    with np.errstate(over="ignore"):
        mixed = bits + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def explain(
    left: Sequence[Family], right: Sequence[Family], balance: Balance, stores: tuple[Store, Store]
) -> Held:
    """Pair the parts of one arrangement whose values are the same and nobody else's."""
    parts = parts_of(left, balance.left), parts_of(right, balance.right)
    pairs: dict[int, tuple[int, tuple[int, ...], str]] = {}
    hints: set[tuple[int, int]] = set()
    for key, places in classes(*parts).items():
        for change in CHANGES if len(key[0]) < 3 else CHANGES[:1]:
            rows = [row for row in places[0] if row not in pairs]
            taken = {column for column, _, _ in pairs.values()}
            columns = [column for column in places[1] if column not in taken]
            alike = same(parts, (rows, columns), stores, change)
            hints |= {(row, column) for row, column in alike if not change}
            pairs |= with_layouts(parts, single(alike), stores, change)
    elements = [int(np.prod(part.sizes)) for part in parts[1]]
    explained = sum(elements[column] for column, _, _ in pairs.values())
    return Held(balance, pairs, explained / max(1, sum(elements)), frozenset(hints))


def same(
    parts: tuple[list[Part], list[Part]],
    places: tuple[list[int], list[int]],
    stores: tuple[Store, Store],
    change: str,
) -> list[tuple[int, int]]:
    """Return the pairs of places whose marks are equal."""
    pairs = []
    for column in places[1]:
        dtype = stores[1].dtype(parts[1][column])
        mark = stores[1].mark(parts[1][column], dtype, "")
        pairs += [
            (row, column)
            for row in places[0]
            if stores[0].mark(parts[0][row], dtype, change) == mark
        ]
    return pairs


def single(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs both of whose members are in no other one.

    >>> single([(0, 1), (2, 3), (2, 4)])
    [(0, 1)]
    """
    rows, columns = Counter(row for row, _ in pairs), Counter(column for _, column in pairs)
    return [(row, column) for row, column in pairs if rows[row] == columns[column] == 1]


def with_layouts(
    parts: tuple[list[Part], list[Part]],
    pairs: Sequence[tuple[int, int]],
    stores: tuple[Store, Store],
    change: str,
) -> dict[int, tuple[int, tuple[int, ...], str]]:
    """Return PAIRS with their layouts; those whose values no order of axes explains are left out."""
    found = {}
    for row, column in pairs:
        left, right = parts[0][row], parts[1][column]
        dtype = stores[1].dtype(right)
        arrays = kept(stores[0].array(left), dtype, change), kept(stores[1].array(right), dtype, "")
        way = layout(left, right, arrays)
        if way is not None:
            found[row] = (column, way, change)
    return found


def layout(left: Part, right: Part, arrays: tuple[Array, Array]) -> tuple[int, ...] | None:
    """Return how LEFT lies on RIGHT, for every place of LEFT the place of RIGHT; ``None`` if it does not."""
    mine, theirs = by_size(left), by_size(right)
    squeezed = np.squeeze(arrays[0])
    ordered = squeezed.transpose([left.places.index(spot) for spot in mine])
    for turn in turns(left.key):
        if np.array_equal(place(ordered.transpose(turn), right), arrays[1], equal_nan=True):
            onto = {mine[turn[at]]: theirs[at] for at in range(len(turn))}
            return tuple(onto[spot] for spot in left.places)
    return None
