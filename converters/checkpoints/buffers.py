"""Buffers used again: a fresh one for every tensor would cost as much as hashing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .base import CHUNK


class Buffers:
    """As many buffers of ``CHUNK`` bytes as were ever in use at once, in any thread."""

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
