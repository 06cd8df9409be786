"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it was building is removed first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from ..errors import Terminated

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block the first signal of ``ENDING`` raises ``Terminated``; further ones do nothing.

    A signal that is ignored (``nohup``) or handled already stays as it is, and so does everything
    outside the main thread, where signals cannot be caught.
    """
    ours = threading.current_thread() is threading.main_thread()
    caught = [one for one in ENDING if ours and signal.getsignal(one) is signal.SIG_DFL]
    for one in caught:
        signal.signal(one, _raise)
    try:
        yield
    finally:
        for one in caught:
            signal.signal(one, signal.SIG_DFL)


def _raise(number: int, _frame: FrameType | None) -> None:
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)  # nothing may stop the removal half-way
    raise Terminated(f"Terminated by {signal.Signals(number).name}; nothing was left behind.")
