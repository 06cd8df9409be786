"""Several threads for one list of tasks: while one waits for the system, another hashes.

Reading, hashing and writing all happen outside of Python's lock, so that two threads take half
the time of one, and with one core no longer than one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from threading import Lock, Thread
from typing import Final, TypeVar

Item = TypeVar("Item")

THREADS: Final = min(4, os.cpu_count() or 1)  # more would only wait for the memory
_END: Final = object()


class Stopped(Exception):  # noqa: N818  # not an error: another thread has met one
    """Another worker has failed, or was interrupted."""


class Workers:
    """Threads, the caller's among them; the first error ends the work of all."""

    def __init__(self, count: int = THREADS) -> None:
        self.count = count
        self._errors: list[BaseException] = []

    def each(self, items: Iterable[Item], work: Callable[[Item], object]) -> None:
        """Do WORK once for each of ITEMS, begun in their order.

        Raises:
            BaseException: the first error of any thread, an interrupt included.
        """
        tasks, lock = iter(items), Lock()

        def labour() -> None:
            while not self._errors:
                with lock:
                    item = next(tasks, _END)
                if item is _END:
                    return
                self._attempt(work, item)

        others = [
            Thread(target=self._attempt, args=(labour,), daemon=True) for _ in range(self.count - 1)
        ]
        for thread in others:
            thread.start()
        self._attempt(labour)
        for thread in others:
            while thread.is_alive():  # an interrupt ends the waiting, not the thread
                self._attempt(Thread.join, thread)
        if self._errors:
            raise self._errors[0]

    def check(self) -> None:
        """Raise ``Stopped`` if there is no more use in going on; called now and then by the work."""
        if self._errors:
            raise Stopped

    def _attempt(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # raised in the caller's thread by `each`
            self._errors.append(error)
