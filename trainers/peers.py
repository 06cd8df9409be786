"""Connections to other ranks: where one is closed, and this process waits for it all the same, it ends."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..converters.common.exits import Exit

if TYPE_CHECKING:
    from psutil._ntuples import addr

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
        self._opened: set[tuple[addr, ...]] = set()
        self._waits = 0  # how many there were; odd while one goes on
        self._over = threading.Event()

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Take connections that are opened in the block for those to the other ranks, and watch them.

        Where the ports of the ranks are known, those of other ports are somebody else's, such as another thread's.
        """
        before, ports = established(), ring_ports()
        yield
        opened = established() - before
        self._opened = {both for both in opened if not ports or ports & {it.port for it in both}}
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


def ring_ports() -> set[int]:
    """Return the ports on which ranks of MLX's ring listen; none where something else connects them."""
    file = os.environ.get("MLX_HOSTFILE")
    text = Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else ""
    return {int(port) for port in re.findall(r':(\d+)"', text)}


def established() -> set[tuple[addr, ...]]:
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
