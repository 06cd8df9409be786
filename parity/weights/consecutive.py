"""Tensors in a row that another library cuts elsewhere: each is the end of one and the begin of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...converters.values import Array
from .places import bits, same_row


class Run(NamedTuple):
    """Rows of SOURCE from START to before STOP."""

    source: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"rows {self.start}-{self.stop - 1} of {self.source}"


def runs_of(array: Array, sources: Sequence[str], read: Callable[[str], Array]) -> list[Run]:
    """Return the rows of SOURCES that follow each other in ARRAY; nothing where they do not fill it.

    Only the first may begin within a tensor, and only the last may end within one.

    >>> tensors = {"a": np.arange(12.0).reshape(6, 2), "b": np.arange(20.0, 30).reshape(5, 2)}
    >>> whole = np.concatenate(list(tensors.values()))
    >>> [str(it) for it in runs_of(whole[4:9], list(tensors), tensors.get)]
    ['rows 4-5 of a', 'rows 0-2 of b']
    """
    tables = {name: table_of(read(name)) for name in sources}
    rows = table_of(array)
    for name, table in tables.items():
        if table.dtype != rows.dtype or table.shape[1:] != rows.shape[1:]:
            continue
        for start in same_row(rows[0], table, 0.0):
            first = Run(name, int(start), min(len(table), int(start) + len(rows)))
            found = list(followed(rows, first, tables))
            if sum(it.stop - it.start for it in found) == len(rows):
                return found
    return []


def followed(rows: Array, first: Run, tables: Mapping[str, Array]) -> Iterator[Run]:
    """Yield FIRST and what follows it in ROWS, each of TABLES once and from its begin."""
    run, done, rest = first, 0, {**tables}
    while begins(rows[done:], rest.pop(run.source)[run.start :]):
        yield run
        done += run.stop - run.start
        names = (it for it in rest if done < len(rows) and begins(rows[done:], rest[it]))
        if (name := next(names, None)) is None:
            return
        run = Run(name, 0, min(len(rest[name]), len(rows) - done))


def begins(rows: Array, table: Array) -> bool:
    """Say whether ROWS begin as TABLE does, as far as the shorter of them goes."""
    count = min(len(rows), len(table))
    return bool(np.array_equal(rows[:count], table[:count]))


def table_of(array: Array) -> Array:
    """Return the rows of ARRAY along its first axis, bit for bit."""
    found = bits(array)
    return found.reshape(len(found), -1)
