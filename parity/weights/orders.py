"""Say in words how rows were reordered: blocks swapped, halves interleaved, or at random."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from ...converters.values import Array

NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a path


def match_rows(found: Array, wanted: Array, tolerance: float | Array) -> Array | None:
    """Return which entry of WANTED each entry of FOUND is, or ``None`` where one is none of them.

    An entry that stands where it should is not looked for elsewhere.

    Args:
        found: one figure per row, float64.
        wanted: the same figures of the reference, at least as many.
        tolerance: how far equal figures may lie apart, one for all or one per row.

    >>> match_rows(np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]), 1e-9).tolist()
    [2, 0, 1]
    """
    count = len(found)
    if count == 0 or len(wanted) < count:
        return None
    limit = np.broadcast_to(tolerance, found.shape)
    stays = np.abs(found - wanted[:count]) <= limit
    order = np.argsort(wanted, kind="stable")
    place = np.searchsorted(wanted[order], found)
    below = order[np.clip(place - 1, 0, len(wanted) - 1)]
    above = order[np.clip(place, 0, len(wanted) - 1)]
    nearer = np.abs(wanted[below] - found) < np.abs(wanted[above] - found)
    best = np.where(stays, np.arange(count), np.where(nearer, below, above))
    return best if np.all(np.abs(wanted[best] - found) <= limit) else None


def block_size(order: Sequence[int]) -> int:
    """Return the size of the largest aligned blocks that ORDER moves as wholes.

    >>> block_size([4, 5, 2, 3, 0, 1])
    2
    """
    positions = np.asarray(order)
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return int(np.gcd.reduce(np.concatenate([breaks, positions[breaks], [len(positions)]])))


def interleaved(order: Sequence[int], size: int) -> bool:
    """Return whether ORDER turns halves into pairs, or pairs into halves, in blocks of SIZE.

    This is what separates the two layouts of rotary embeddings.

    >>> interleaved([0, 2, 1, 3, 4, 6, 5, 7], 4)
    True
    """
    if size % 2 or len(order) % size:
        return False
    halves = np.arange(len(order)).reshape(-1, 2, size // 2)
    pairs = halves.transpose(0, 2, 1).reshape(-1)
    return bool(np.array_equal(order, pairs) or np.array_equal(np.argsort(order), pairs))


def describe_order(order: Sequence[int], rows: str = "rows") -> str:
    """Return one line on how ORDER, the source of each row, departs from the identity.

    >>> describe_order([2, 3, 0, 1, 4, 5])
    'blocks of 2 rows moved: 0 <- 1, 1 <- 0'
    >>> describe_order([0, 2, 1, 3, 4, 6, 5, 7])
    'rows interleaved: halves for pairs in blocks of 4'
    """
    count = len(order)
    for size in range(4, count + 1, 2):
        if interleaved(order, size):
            return f"{rows} interleaved: halves for pairs in blocks of {size}"
    size = block_size(order)
    if size > 1:
        blocks = [(at, order[at * size] // size) for at in range(count // size)]
        moved = [f"{to} <- {source}" for to, source in blocks if to != source]
        return f"blocks of {size} {rows} moved: {shorten(moved)}"
    moved = [f"{to} <- {source}" for to, source in enumerate(order) if to != source]
    return f"{len(moved)} of {count} {rows} moved: {shorten(moved)}"


def out_of_turn(names: Sequence[str]) -> str:
    """Return the first two of NAMES where several kinds, as often as each other, do not take turns by number.

    They may follow each other kind by kind too; kinds of other counts have no turns. A number counts
    where it stands between dots: ``w1`` and ``w3`` are two kinds.

    >>> out_of_turn(["e.0.gate", "e.0.up", "e.1.up", "e.1.gate"])
    'e.1.up where e.1.gate is due'
    >>> out_of_turn(["w3", "w1"]), out_of_turn(["q", "v", "k"])
    ('', '')
    >>> out_of_turn(["e.0.gate", "e.1.gate", "e.0.up", "e.1.up"])
    ''
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(NUMBER.sub("#", name), []).append(name)
    rows = [sorted(it, key=lambda name: [*map(int, NUMBER.findall(name))]) for it in kinds.values()]
    if len({*map(len, rows)}) != 1:
        return ""
    turns = [name for turn in zip(*rows, strict=True) for name in turn]
    due = [turns, [name for row in rows for name in row]]
    wrong = [
        f"{one} where {other} is due"
        for one, other in zip(names, turns, strict=True)
        if one != other
    ]
    return "" if list(names) in due else wrong[0]


def shorten(items: Sequence[str], most: int = 4) -> str:
    """Join ITEMS, the first MOST of them.

    >>> shorten(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def ranges(indices: Array) -> str:
    """Return sorted INDICES as ranges.

    >>> ranges(np.array([1, 2, 3, 7]))
    '1-3, 7'
    """
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return shorten([str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs])
