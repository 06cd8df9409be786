"""Several threads for one list of tasks: while one waits for the system, another hashes.

Reading, hashing and writing all happen outside of Python's lock, so that two threads take half
the time of one, and with one core no longer than one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from threading import Lock, Thread
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

THREADS: Final = min(4, os.cpu_count() or 1)  # more would only wait for the memory


class Shared(Generic[Item]):
    """An iterator from which several threads take."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items, self._lock = iter(items), Lock()

    def __iter__(self) -> Shared[Item]:
        return self

    def __next__(self) -> Item:
        with self._lock:
            return next(self._items)


class Stopped(Exception):  # noqa: N818  # not an error: another thread has met one
    """Another worker has failed, or was interrupted."""


class Workers:
    """Threads, the caller's among them; the first error ends the work of all."""

    def __init__(self, count: int = THREADS) -> None:
        self.count = count
        self._errors: list[BaseException] = []

    def each(
        self, items: Iterable[Item], work: Callable[[Item], object], own: Iterable[Item] = ()
    ) -> None:
        """Do WORK once for each of ITEMS, begun in their order, and for each of OWN.

        OWN is done by the caller's thread, one item after the other, before it helps with the rest.

        Raises:
            BaseException: the first error of any thread, an interrupt included.
        """
        shared = Shared(items)
        others = [
            Thread(target=self._labour, args=(shared, work), daemon=True)
            for _ in range(self.count - 1)
        ]
        for thread in others:
            thread.start()
        self._labour(own, work)
        self._labour(shared, work)
        for thread in others:
            while thread.is_alive():  # an interrupt ends the waiting, not the thread
                self._attempt(Thread.join, thread)
        if self._errors:
            raise self._errors[0]

    def check(self) -> None:
        """Raise ``Stopped`` if there is no more use in going on; called now and then by the work."""
        if self._errors:
            raise Stopped

    def _labour(self, items: Iterable[Item], work: Callable[[Item], object]) -> None:
        """Do WORK for ITEMS until there are no more, or anyone fails."""

        def all_of_it() -> None:
            for item in items:
                if self._errors:
                    return
                work(item)

        self._attempt(all_of_it)

    def _attempt(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # raised in the caller's thread by `each`
            self._errors.append(error)
