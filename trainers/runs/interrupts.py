"""Ctrl-C, SIGTERM and SIGHUP between two updates, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ...errors import Terminated

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TrainingInterrupted(KeyboardInterrupt):
    """A run stopped on request, a checkpoint written; the message says how to go on."""


class TrainingTerminated(TrainingInterrupted, Terminated):
    """The same, on SIGTERM or SIGHUP."""


class InterruptFlag:
    """Within the block the first signal of ``STOPPING`` sets ``raised``; the second acts at once.

    Outside the main thread, where signals cannot be caught, it does nothing. One that is ignored
    (``nohup``) stays so.
    """

    def __init__(self) -> None:
        self.raised: int | None = None
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            for one in STOPPING:
                before = signal.getsignal(one)
                if one == signal.SIGINT or before is not signal.SIG_IGN:
                    self._before[one] = signal.signal(one, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    @property
    def kind(self) -> type[TrainingInterrupted] | None:
        """What to raise, if one came."""
        if self.raised is None:
            return None
        return TrainingInterrupted if self.raised == signal.SIGINT else TrainingTerminated

    def _restore(self) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.raised = number
        self._restore()
        if number == signal.SIGINT:  # a background job ignores it, and was sent it all the same
            signal.signal(number, signal.default_int_handler)
