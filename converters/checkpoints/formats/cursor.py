"""Ranges of a stream that only goes forward, such as a compressed one."""

from __future__ import annotations

from collections.abc import Iterator


class Cursor:
    """A place in a stream of bytes.

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
