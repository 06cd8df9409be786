"""Bytes of a file from one place to another, read without mapping it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from ....errors import BadInputError
from ...values import Array
from ..base import CHUNK
from ..buffers import BUFFERS


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


def gather(parts: Iterable[memoryview], nbytes: int) -> Array:
    """Return PARTS, NBYTES together, as an array of bytes of their own."""
    data, end = np.empty(nbytes, np.uint8), 0
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
