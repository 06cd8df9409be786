"""Find one tensor inside another: stacked, joined, split or interleaved, its axes in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np

from ...converters.values import Array
from .sketches.sketch import squeeze

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


Rows = Callable[[Array, int], Array]


class Whole(NamedTuple):
    """A tensor that others may be parts of, its rows as tables.

    Attributes:
        size: how many bytes it has.
        tables: its rows as they lie, and with the last two axes exchanged; or one figure a row.
        widths: how many elements are in a row of each table.
        rows: makes comparable rows of a part, given the part and their width.
        limit: how far equal figures may lie apart; 0 for bits.
    """

    size: int
    tables: tuple[Array, ...]
    widths: tuple[int, ...]
    rows: Rows
    limit: float = 0.0


def whole_of(array: Array) -> Whole:
    """Return ARRAY ready to be searched, bit for bit, without axes of size 1: a kernel of one place is a matrix."""
    found = bits(array)
    found = found.reshape(squeeze(found.shape) or (1,))
    tables = [found.reshape(-1, found.shape[-1] if found.ndim > 1 else 1)]
    if found.ndim > 1:
        turned = np.ascontiguousarray(found.swapaxes(-1, -2))
        tables.append(turned.reshape(-1, turned.shape[-1]))
    widths = tuple(table.shape[1] for table in tables)
    return Whole(found.nbytes, tuple(tables), widths, lambda part, width: part.reshape(-1, width))


def bits(array: Array) -> Array:
    """Return ARRAY as unsigned integers, the bytes of integers one by one: packed ones may be wider.

    >>> bits(np.zeros((2, 3), np.uint32)).shape, bits(np.zeros((2, 3), np.float32)).shape
    ((2, 12), (2, 3))
    """
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and array.ndim:
        return array.view(np.uint8)
    return array.view(f"u{array.dtype.itemsize}")


@lru_cache(maxsize=4096)
def may_hold(whole: Shape, part: Shape) -> bool:
    """Say whether a tensor of shape WHOLE may hold one of shape PART, by their sizes alone.

    >>> may_hold((6, 20, 12), (20, 12)), may_hold((6, 20, 12), (7, 5))
    (True, False)
    """
    if not 0 < math.prod(part) < math.prod(whole):
        return False
    whole = squeeze(whole)
    widths = {1} if len(whole) < 2 else {whole[-1], whole[-2]}
    return any(any(True for _ in orders(part, width)) for width in widths)


def find_place(part: Array, whole: Whole, *, any_order: bool = False) -> Place | None:
    """Return where the values of PART lie in WHOLE; ``None`` where they do not.

    The rows of PART must stand in WHOLE in their own order at equal distances, in one block or in
    one block for each index of PART's first axes; in ANY_ORDER they may stand anywhere, each once.

    >>> numbers = np.arange(24.0).reshape(2, 6, 2)
    >>> find_place(numbers[:, 1::2], whole_of(numbers)).rows.tolist()
    [1, 3, 5, 7, 9, 11]
    """
    part = part if whole.limit else bits(part)
    if part.size < FEWEST or part.nbytes >= whole.size or part.ndim > MOST_AXES:
        return None
    for turned, (table, width) in enumerate(zip(whole.tables, whole.widths, strict=True)):
        for axes in orders(part.shape, width):
            moved = part.transpose(axes)
            rows = whole.rows(moved, width)
            found = matching(rows, table, moved.shape, whole.limit)
            if found is None and any_order and not whole.limit:
                found = scattered(rows, table)
            if found is not None:
                return Place(bool(turned), found, axes)
    return None


def orders(shape: Shape, width: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes in which rows of WIDTH are whole last axes of SHAPE, as it lies first."""
    known = set()
    for axes in permutations(range(len(shape))):
        kept = tuple(axis for axis in axes if shape[axis] != 1)
        if kept not in known and width in suffixes(tuple(shape[axis] for axis in axes)):
            known.add(kept)
            yield axes


def suffixes(shape: Shape) -> set[int]:
    """Return the products of the last sizes of SHAPE; of a vector the single element too.

    >>> sorted(suffixes((4, 3, 2)))
    [2, 6, 24]
    """
    found = {math.prod(shape[at:]) for at in range(len(shape))}
    return found | ({1} if len(shape) == 1 else set())


def matching(rows: Array, table: Array, shape: Shape, limit: float) -> Array | None:
    """Return which rows of TABLE are ROWS, cut into as many equal blocks as SHAPE's first axes allow."""
    counts = dict.fromkeys(math.prod(shape[:at]) for at in range(len(shape)))
    for count in counts if table.dtype == rows.dtype else ():
        if len(rows) % count == 0 and len(table) % count == 0:
            found = in_blocks(rows, table, count, limit)
            if found is not None:
                return found
    return None


def in_blocks(rows: Array, table: Array, count: int, limit: float) -> Array | None:
    """Return which rows of TABLE are ROWS if both are COUNT blocks that lie alike."""
    period, size = len(table) // count, len(rows) // count
    if size > period:
        return None
    seconds = same_row(rows[1], table[:period], limit) if size > 1 else np.zeros(0, np.int64)
    for start in same_row(rows[0], table[:period], limit):
        for step in [at - start for at in seconds if at > start] or [1]:
            inside = start + step * np.arange(size)
            found = np.add.outer(np.arange(count) * period, inside).reshape(-1)
            if inside[-1] < period and alike(table[found], rows, limit).all():
                return np.asarray(found)
    return None


def scattered(rows: Array, table: Array) -> Array | None:
    """Return which rows of TABLE are ROWS, in whatever order; ``None`` where one is none, or two are alike.

    >>> table = np.arange(8).reshape(4, 2)
    >>> scattered(table[[2, 0]], table).tolist(), scattered(table[[2, 2]], table)
    ([2, 0], None)
    """
    place = {row.tobytes(): at for at, row in enumerate(table)} if table.dtype == rows.dtype else {}
    found = [place.get(row.tobytes(), -1) for row in rows]
    sure = len(place) == len(table) and -1 not in found and len({*found}) == len(found)
    return np.array(found) if sure else None


def same_row(row: Array, table: Array, limit: float) -> Array:
    """Return which rows of TABLE are ROW."""
    first = np.flatnonzero(alike(table[:, 0], row[0], limit))
    return np.asarray(first[alike(table[first], row, limit).all(axis=1)])


def alike(one: Array, other: Array, limit: float) -> Array:
    """Say where ONE is OTHER, within LIMIT if that is not 0."""
    return np.asarray(np.abs(one - other) <= limit if limit else one == other)


def describe_rows(rows: Array, count: int) -> str:
    """Return ROWS of COUNT in words.

    >>> describe_rows(np.array([2, 3, 4]), 9), describe_rows(np.array([1, 3, 5]), 6)
    ('rows 2-4 of 9', 'every 2nd of 6 rows from row 1')
    """
    steps = set(np.diff(rows).tolist())
    if min(steps, default=1) < 0:
        return f"{len(rows)} of {count} rows in another order from row {min(rows)}"
    if steps <= {1}:
        return f"rows {rows[0]}-{rows[-1]} of {count}"
    if len(steps) == 1:
        (step,) = steps
        ordinal = {2: "2nd", 3: "3rd"}.get(step, f"{step}th")
        return f"every {ordinal} of {count} rows from row {rows[0]}"
    return f"{len(rows)} of {count} rows in equal blocks from row {rows[0]}"
