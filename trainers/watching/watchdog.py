"""A watchdog: a run that hangs leaves a dump of its stacks and a checkpoint, and the process ends."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ...converters.common.exits import Exit
from ...converters.common.hints import command

if TYPE_CHECKING:
    from ..steps.base import Step

STACK: Final = "stack.txt"
LOOK: Final = 5.0  # seconds between two looks, at most
WRITING: Final = 300.0  # seconds that a checkpoint may take to be written
GRACE: Final = (
    30.0  # seconds after which the interpreter's own watchdog acts, if no thread of ours can run
)


class Watchdog:
    """Watches the run in FOLDER while a ``with`` block runs, from one sign of life to the next.

    A thread looks again and again, and counts its looks: a machine that slept, or a process that was
    stopped, is no reason. Where none of our threads can run, because something holds the interpreter,
    Python's own dump on time-out acts instead (on stderr, with exit code 1).

    Args:
        folder: gets the dump.
        seconds: that may pass without a sign of life; ``None`` watches nothing.
        save: writes a checkpoint and returns its place, or ``None`` where none is newer than the last.
        leave: ends the process; what it is called with is the exit code.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float | None,
        save: Callable[[], Path | None],
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._folder, self._seconds, self._save, self._leave = folder, seconds, save, leave
        self._beats, self._acts = 0, False
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

    def beat(self) -> None:
        """Take note of a sign of life; one that comes too late never returns."""
        self._beats += 1
        if self._acts:
            self._thread.join()

    def _watch(self) -> None:
        seconds = self._seconds or 0.0
        pause = min(seconds / 4, LOOK)
        beats, silent = self._beats, 0.0
        while not self._over.wait(pause):
            _arm(seconds + GRACE)
            silent = silent + pause if beats == self._beats else 0.0
            beats = self._beats
            if silent > seconds:
                self._act()
                return

    def _act(self) -> None:
        self._acts = True
        _arm(WRITING + GRACE)
        path = self._folder / STACK
        with path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
        sys.stderr.write(
            f"error: nothing has moved for {self._seconds:g} s (watchdog); what the run does is in {path}."
            f" {self._left()}; go on with: {command('train', self._folder, '--resume')}\n"
        )
        sys.stderr.flush()
        self._leave(Exit.FAILED)

    def _left(self) -> str:
        """Write a checkpoint, by a thread that is not waited for for ever; return what there is to go on from."""
        found = [f"No checkpoint could be written in {WRITING:g} s, the last one stays"]

        def save() -> None:
            try:
                place = self._save()
            except Exception as error:
                found.append(f"No checkpoint could be written ({error}), the last one stays")
            else:
                found.append(f"{place} is written" if place else "The last checkpoint stays")

        writing = threading.Thread(target=save, name="watchdog-checkpoint", daemon=True)
        writing.start()
        writing.join(WRITING)
        return found[-1]


class Watched:
    """A step whose every use is a sign of life, by calling BEAT."""

    def __init__(self, step: Step, beat: Callable[[], None]) -> None:
        self._step, self._beat = step, beat

    def __getattr__(self, name: str) -> Any:
        """Return what STEP has by this NAME."""
        self._beat()
        return getattr(self._step, name)


def _arm(seconds: float) -> None:
    """Let the interpreter dump its stacks and end in SECONDS, unless this is called again."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
