"""Connections to other ranks: where one is closed, and this process waits for it all the same, it ends."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..converters.common.exits import Exit

LOOK: Final = 1.0  # seconds between two looks at the connections
LOOKS: Final = 5  # that find the same wait and a closed connection, until the process ends


class Peers:
    """Watches the TCP connections that were opened in the ``with`` block of :meth:`joining`.

    MLX's ring says of a closed connection only to the sums that are under way; one that is begun later
    may wait for ever, outside Python, where no signal is acted upon.

    Args:
        leave: ends the process; called from a thread of its own.
        look: seconds between two looks.
    """

    def __init__(self, leave: Callable[[], object], look: float = LOOK) -> None:
        self._leave, self._look = leave, look
        self._opened: set[tuple[object, ...]] = set()
        self._waits = 0  # how many there were; odd while one goes on
        self._over = threading.Event()

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Take connections that are opened in the block for those to the other ranks, and watch them."""
        before = established()
        yield
        self._opened = established() - before
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as one wait for the other ranks."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits += 1

    def close(self) -> None:
        """Stop watching."""
        self._over.set()

    def _watch(self) -> None:
        wait, looks = 0, 0
        while looks < LOOKS:
            if self._over.wait(self._look):
                return
            now = self._waits
            same = now % 2 and now == wait
            looks = looks + 1 if same and self._opened - established() else 0
            wait = now
        self._leave()


def established() -> set[tuple[object, ...]]:
    """Return the two addresses of every TCP connection of this process that both sides hold open."""
    import psutil

    return {
        (it.laddr, it.raddr)
        for it in psutil.Process().net_connections("tcp")
        if it.status == psutil.CONN_ESTABLISHED
    }


def leave(text: str) -> None:
    """End this process at once with TEXT as its error; its main thread waits and cannot be reached."""
    if text:
        sys.stderr.write(f"Error: {text}\n")
        sys.stderr.flush()
    os._exit(Exit.FAILED)
