"""Things made ahead of their use by threads: batches that are ready when an update wants them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """What MAKE returns for position after position, the next ones made while one is in use.

    The same things come in the same order whatever the number of threads.

    Args:
        make: called with a position, by several threads at a time.
        workers: threads; with none a thing is made when it is wanted.
        depth: positions behind the one wanted that are made ahead.

    Attributes:
        waited: seconds that :meth:`get` has waited for things so far.
    """

    def __init__(self, make: Callable[[int], Made], workers: int, depth: int) -> None:
        self._make, self._depth = make, depth
        self._threads = ThreadPoolExecutor(workers, "data") if workers and depth else None
        self._begun: dict[int, Future[Made]] = {}
        self.waited = 0.0

    def __enter__(self) -> Ahead[Made]:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """Make nothing more."""
        self.close()

    def get(self, position: int) -> Made:
        """Return what is at POSITION, and begin to make what is behind it.

        Raises:
            Exception: what MAKE raised for this position.
        """
        begin = time.monotonic()
        try:
            return self._begin(position).result() if self._threads else self._make(position)
        finally:
            self.waited += time.monotonic() - begin

    def close(self) -> None:
        """Make nothing more; wait for what is being made."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def _begin(self, position: int) -> Future[Made]:
        """Begin all that is wanted from POSITION on, and forget what is not."""
        wanted = range(position, position + self._depth + 1)
        for other in [it for it in self._begun if it not in wanted]:
            self._begun.pop(other).cancel()
        for one in wanted:
            if one not in self._begun and self._threads:
                self._begun[one] = self._threads.submit(self._make, one)
        return self._begun.pop(position)
