"""Ctrl-C between two updates, never inside one."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class TrainingInterrupted(KeyboardInterrupt):
    """A run stopped on request, a checkpoint written; the message says how to go on."""


class InterruptFlag:
    """Within the block the first Ctrl-C sets ``raised``; the second interrupts at once.

    Outside the main thread, where signals cannot be caught, it does nothing.
    """

    def __init__(self) -> None:
        self.raised = False

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.raised = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
