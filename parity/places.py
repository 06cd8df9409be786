"""Find one tensor inside another: stacked, joined, split or interleaved, its axes in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np

from ..converters.values import Array

FEWEST: Final = 4  # elements; less may lie anywhere by chance
MOST_AXES: Final = 4
Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where a part lies in a whole.

    Attributes:
        turned: whether the whole's last two axes are exchanged first.
        rows: which of the whole's rows, along its last axis then, the part is, in the part's order.
        axes: the order of the part's axes in which it lies there.
    """

    turned: bool
    rows: Array
    axes: tuple[int, ...]


class Whole:
    """A tensor that others may be parts of, its rows laid out once.

    Attributes:
        size: how many bytes it has.
        tables: its rows as they lie, and with the last two axes exchanged.
    """

    def __init__(self, array: Array) -> None:
        found = bits(array)
        self.size = found.nbytes
        self.tables = [found.reshape(-1, found.shape[-1] if found.ndim > 1 else 1)]
        if found.ndim > 1:
            turned = np.ascontiguousarray(found.swapaxes(-1, -2))
            self.tables.append(turned.reshape(-1, turned.shape[-1]))


def bits(array: Array) -> Array:
    """Return ARRAY as unsigned integers, the bytes of integers one by one: packed ones may be wider.

    >>> bits(np.zeros((2, 3), np.uint32)).shape, bits(np.zeros((2, 3), np.float32)).shape
    ((2, 12), (2, 3))
    """
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and array.ndim:
        return array.view(np.uint8)
    return array.view(f"u{array.dtype.itemsize}")


def may_hold(whole: Shape, part: Shape) -> bool:
    """Say whether a tensor of shape WHOLE may hold one of shape PART, by their sizes alone.

    >>> may_hold((6, 20, 12), (20, 12)), may_hold((6, 20, 12), (7, 5))
    (True, False)
    """
    if not 0 < math.prod(part) < math.prod(whole):
        return False
    widths = {1} if len(whole) < 2 else {whole[-1], whole[-2]}
    return any(any(True for _ in orders(part, width)) for width in widths)


def find_place(part: Array, whole: Whole) -> Place | None:
    """Return where the values of PART lie in WHOLE, bit for bit; ``None`` where they do not.

    The rows of PART must stand in WHOLE in their own order at equal distances, in one block or in
    one block for each index of PART's first axes.

    >>> numbers = np.arange(24.0).reshape(2, 6, 2)
    >>> find_place(numbers[:, 1::2], Whole(numbers)).rows.tolist()
    [1, 3, 5, 7, 9, 11]
    """
    part = bits(part)
    if part.size < FEWEST or part.nbytes >= whole.size or part.ndim > MOST_AXES:
        return None
    for turned, table in enumerate(whole.tables):
        if table.dtype != part.dtype:
            continue
        for axes in orders(part.shape, table.shape[1]):
            moved = part.transpose(axes)
            found = matching(moved.reshape(-1, table.shape[1]), table, moved.shape)
            if found is not None:
                return Place(bool(turned), found, axes)
    return None


def orders(shape: Shape, width: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes in which rows of WIDTH are whole last axes of SHAPE, as it lies first."""
    seen = set()
    for axes in permutations(range(len(shape))):
        kept = tuple(axis for axis in axes if shape[axis] != 1)
        if kept not in seen and width in suffixes(tuple(shape[axis] for axis in axes)):
            seen.add(kept)
            yield axes


def suffixes(shape: Shape) -> set[int]:
    """Return the products of the last sizes of SHAPE; of a vector the single element too.

    >>> sorted(suffixes((4, 3, 2)))
    [2, 6, 24]
    """
    found = {math.prod(shape[at:]) for at in range(len(shape))}
    return found | ({1} if len(shape) == 1 else set())


def matching(rows: Array, table: Array, shape: Shape) -> Array | None:
    """Return which rows of TABLE are ROWS, cut into as many equal blocks as SHAPE's first axes allow."""
    counts = dict.fromkeys(math.prod(shape[:at]) for at in range(len(shape)))
    for count in counts:
        if len(rows) % count == 0 and len(table) % count == 0:
            found = in_blocks(rows, table, count)
            if found is not None:
                return found
    return None


def in_blocks(rows: Array, table: Array, count: int) -> Array | None:
    """Return which rows of TABLE are ROWS if both are COUNT blocks that lie alike."""
    period, size = len(table) // count, len(rows) // count
    if size > period:
        return None
    steps = {1, period // size} if period % size == 0 else {1}
    for start in same_row(rows[0], table[:period]):
        for step in sorted(steps):
            inside = start + step * np.arange(size)
            found = np.add.outer(np.arange(count) * period, inside).reshape(-1)
            if inside[-1] < period and np.array_equal(table[found], rows):
                return np.asarray(found)
    return None


def same_row(row: Array, table: Array) -> Array:
    """Return which rows of TABLE are ROW."""
    first = np.flatnonzero(table[:, 0] == row[0])
    return np.asarray(first[(table[first] == row).all(axis=1)])


def describe_rows(rows: Array, count: int) -> str:
    """Return ROWS of COUNT in words.

    >>> describe_rows(np.array([2, 3, 4]), 9), describe_rows(np.array([1, 3, 5]), 6)
    ('rows 2-4 of 9', 'every 2nd of 6 rows from row 1')
    """
    steps = set(np.diff(rows).tolist())
    if steps <= {1}:
        return f"rows {rows[0]}-{rows[-1]} of {count}"
    if len(steps) == 1:
        (step,) = steps
        ordinal = {2: "2nd", 3: "3rd"}.get(step, f"{step}th")
        return f"every {ordinal} of {count} rows from row {rows[0]}"
    return f"{len(rows)} of {count} rows in equal blocks from row {rows[0]}"
