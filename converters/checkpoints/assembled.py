"""A checkpoint put together from sources: each tensor is bytes of another, or rows that are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..common.dtypes import CODE, NUMPY
from ..values import Array
from .base import Checkpoint, Header, fill
from .derived import Derived
from .formats.ranges import chunks, fresh

Rows = Callable[[slice], Iterable[Array]]


class Source(NamedTuple):
    """Where a tensor comes from.

    Attributes:
        header: of the tensor.
        stream: yields its bytes from one place to another.
    """

    header: Header
    stream: Callable[[int, int], Iterator[memoryview]]


class Assembled(Derived):
    """CHECKPOINT with the tensors that SOURCES make, by name, and no others."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, Source]) -> None:
        super().__init__(checkpoint, {name: it.header for name, it in sources.items()})
        self._sources = sources

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._gathered(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        source = self._sources[name]
        end = source.header.nbytes
        yield from source.stream(start, end if stop is None else min(stop, end))


def same(checkpoint: Checkpoint, name: str, header: Header | None = None) -> Source:
    """Return tensor NAME of CHECKPOINT as it is, or its bytes under another HEADER."""
    return Source(
        header or checkpoint.headers[name],
        lambda start, stop: checkpoint.stream(name, start, stop),
    )


def fixed(array: Array) -> Source:
    """Return a small tensor that is known already."""
    return Source(
        Header(CODE[array.dtype], array.shape), lambda start, stop: chunks(array, start, stop)
    )


def whole(header: Header, make: Callable[[], Array]) -> Source:
    """Return a tensor that MAKE makes at once, each time it is asked for."""
    return Source(header, lambda start, stop: chunks(make(), start, stop))


def computed(header: Header, rows: Rows) -> Source:
    """Return a tensor with HEADER whose rows are what ROWS yields for a slice of them.

    All axes but the last are taken as one. ROWS may yield them in any number of pieces.
    """
    width = header.shape[-1] * NUMPY[header.dtype].itemsize

    def stream(start: int, stop: int) -> Iterator[memoryview]:
        if start >= stop:
            return
        first = start // width
        at = first * width
        for piece in rows(slice(first, -(-stop // width))):
            yield from chunks(piece, max(start - at, 0), stop - at)
            at += piece.nbytes

    return Source(header, stream)


def read_rows(
    checkpoint: Checkpoint, name: str, rows: slice, place: Callable[[int], Array] = fresh
) -> Array:
    """Return ROWS of tensor NAME, all axes but the last taken as one, in the array that PLACE gives."""
    header = checkpoint.headers[name]
    dtype = NUMPY[header.dtype]
    width = header.shape[-1] * dtype.itemsize
    start, stop = rows.start * width, min(rows.stop * width, header.nbytes)
    data = place(stop - start)
    fill(checkpoint, name, start, data.data)
    return data.view(dtype).reshape(-1, header.shape[-1])


def count_rows(header: Header) -> int:
    """Return how many rows a tensor with HEADER has, all axes but the last taken as one."""
    return math.prod(header.shape[:-1])
