"""A watchdog: an update that hangs leaves a dump of its stacks, and the process ends."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from ...converters.common.exits import Exit
from ...converters.common.hints import command

STACK: Final = "stack.txt"
LOOK: Final = 5.0  # seconds between two looks at the clock, at most
GRACE: Final = (
    30.0  # seconds after which the interpreter's own watchdog acts, if no thread of ours can run
)


class Watchdog:
    """Watches the updates of the run in FOLDER while a ``with`` block runs.

    A thread looks at the clock; where none of ours can run, because something holds the interpreter,
    Python's own dump on time-out acts instead (on stderr, with exit code 1).

    Args:
        folder: gets the dump.
        seconds: that an update may take; ``None`` watches nothing.
        leave: ends the process; what it is called with is the exit code.
    """

    def __init__(
        self, folder: Path, seconds: float | None, leave: Callable[[int], object] = os._exit
    ) -> None:
        self._folder, self._seconds, self._leave = folder, seconds, leave
        self._since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        if self._seconds is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def update(self) -> Iterator[None]:
        """Count the block as one update; the last checkpoint stays whatever happens."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def _watch(self) -> None:
        seconds = self._seconds or 0.0
        while not self._over.wait(min(seconds / 4, LOOK)):
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__)
            since = self._since
            if since is not None and time.monotonic() - since > seconds:
                self._act()
                return

    def _act(self) -> None:
        path = self._folder / STACK
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
        sys.stderr.write(
            f"error: an update takes longer than {self._seconds:g} s (watchdog); what it does is in"
            f" {path}. The last checkpoint stays; go on with:"
            f" {command('train', self._folder, '--resume')}\n"
        )
        sys.stderr.flush()
        self._leave(Exit.FAILED)
