"""Bytes of a file from one place to another, read without mapping it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np

from ....errors import BadInputError
from ...values import Array
from ..base import CHUNK


class Buffers:
    """As many buffers of ``CHUNK`` bytes as were ever in use at once, in any thread.

    A fresh one for every tensor would cost as much as hashing it.
    """

    def __init__(self) -> None:
        self._spare: list[bytearray] = []

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Lend a buffer for the block; what is in it is anyone's."""
        buffer = self._take()
        try:
            yield memoryview(buffer)
        finally:
            self._spare.append(buffer)

    def _take(self) -> bytearray:
        try:
            return self._spare.pop()  # in one step: another thread may want it too
        except IndexError:
            return bytearray(CHUNK)


BUFFERS: Final = Buffers()


def pieces(path: Path, begin: int, end: int, what: str) -> Iterator[memoryview]:
    """Yield the bytes BEGIN to END of the file at PATH, at most ``CHUNK`` at a time.

    A yielded view is valid until the next one is asked for. WHAT is named where reading fails.

    Raises:
        BadInputError: the file ends before, or the disk fails.
    """
    with _opened(path, what) as file, BUFFERS.lend() as buffer:
        file.seek(begin)
        for position in range(begin, end, CHUNK):
            piece = buffer[: min(CHUNK, end - position)]
            _fill(file, piece, f"{path}: {what}")
            yield piece


def fill(path: Path, begin: int, piece: memoryview, what: str) -> None:
    """Fill PIECE with the bytes of the file at PATH from BEGIN; errors as in ``pieces``."""
    with _opened(path, what) as file:
        file.seek(begin)
        _fill(file, piece, f"{path}: {what}")


def chunks(array: Array, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
    """Yield the bytes START to STOP of ARRAY, at most ``CHUNK`` at a time.

    >>> [view.tolist() for view in chunks(np.arange(4, dtype=np.uint8), 1, 3)]
    [[1, 2]]
    """
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    end = len(data) if stop is None else min(stop, len(data))
    for at in range(start, end, CHUNK):
        yield data[at : min(at + CHUNK, end)]


def fresh(nbytes: int) -> Array:
    """Return an array of NBYTES, with anything in it."""
    return np.empty(nbytes, np.uint8)


def gather(
    parts: Iterable[memoryview], nbytes: int, place: Callable[[int], Array] = fresh
) -> Array:
    """Return PARTS, NBYTES together, as an array of bytes; PLACE gives it, one of its own by default."""
    data, end = place(nbytes), 0
    for part in parts:
        begin, end = end, end + part.nbytes
        data[begin:end] = part
    return data


@contextmanager
def _opened(path: Path, what: str) -> Iterator[IO[bytes]]:
    """Open PATH; a failure of the disk becomes one line."""
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise BadInputError(f"{path}: {what}: {error.strerror}") from error


def _fill(file: IO[bytes], piece: memoryview, where: str) -> None:
    """Fill PIECE from FILE; the system may return less than asked for."""
    done = 0
    while done < len(piece):
        count = file.readinto(piece[done:])  # type: ignore[attr-defined]
        if not count:
            raise BadInputError(f"{where}: the file shrank while it was read")
        done += count


class Cursor:
    """A place in a stream of bytes that only goes forward, such as a compressed one.

    Attributes:
        position: how many bytes lie before it; they cannot be had any more.

    >>> cursor = Cursor(iter([memoryview(b"abcd"), memoryview(b"ef")]))
    >>> b"".join(cursor.read(1, 3)), b"".join(cursor.read(3, 6)), cursor.position
    (b'bc', b'def', 6)
    """

    def __init__(self, stream: Iterator[memoryview]) -> None:
        self._stream, self._view = stream, memoryview(b"")
        self.position = 0

    def read(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes START, not before the position, to STOP."""
        while self.position < stop:
            if not self._view:
                self._view = next(self._stream)
            wanted = (start if self.position < start else stop) - self.position
            part, self._view = self._view[:wanted], self._view[wanted:]
            skipped = self.position < start
            self.position += part.nbytes
            if not skipped:
                yield part
