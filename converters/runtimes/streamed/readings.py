"""Several runs of one model that read each piece of its weights once, when all have come to it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
Key = tuple[int, ...]  # in the order in which a run comes to them, as far as that is known
KEPT: Final = (
    40 << 20
)  # bytes of pieces that are kept: norms and biases are not read for each probe


class StoppedError(Exception):
    """Another run of the same readings has failed, so this one need not go on."""


class Readings:
    """Pieces of weights: read once for all runs under way, and forgotten when these have moved on.

    One run goes on at a time, until it needs a piece that is not there; then another one does. A piece
    is read when none of them can go on without one. Where all pieces can be kept, the runs come one
    after another.

    >>> readings, read = Readings(total=100 << 20), []
    >>> readings.run([lambda: readings.get((0,), lambda: (read.append("w"), 8)) for _ in range(3)])
    [None, None, None]
    >>> read
    ['w']
    """

    def __init__(self, total: int, kept: int = KEPT) -> None:
        """Share pieces of TOTAL bytes, of which KEPT bytes may be held at a time."""
        self._all_kept = total <= kept
        self._pieces: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._kept, self._held = kept, 0
        self._turn = threading.Condition()
        self._wanted: dict[int, Key] = {}  # by thread
        self._running = 0
        self._failed = False

    def get(self, key: Key, read: Callable[[], tuple[Result, int]]) -> Result:
        """Return the piece called KEY; READ gives it and its bytes."""
        if self._running > 1:
            self._wait_for(key)
        if key not in self._pieces:
            self._add(key, *read())
        piece: Result = self._pieces[key][0]
        return piece

    def _wait_for(self, key: Key) -> None:
        """Let other runs go on until KEY is there, or none of them can."""
        me = threading.get_ident()
        self._wanted[me] = key
        self._turn.notify_all()
        try:
            while key not in self._pieces and key != self._next():
                self._turn.wait()
                if self._failed:
                    raise StoppedError
        finally:
            del self._wanted[me]

    def _next(self) -> Key | None:
        """Return the first piece that is wanted where all runs wait for one, so that none falls behind."""
        if len(self._wanted) < self._running or any(
            it in self._pieces for it in self._wanted.values()
        ):
            return None
        return min(self._wanted.values())

    def _add(self, key: Key, piece: Any, nbytes: int) -> None:
        while self._pieces and self._held + nbytes > self._kept:
            _, (_, size) = self._pieces.popitem(last=False)
            self._held -= size
        self._pieces[key] = piece, nbytes
        self._held += nbytes
        if self._running > 1:
            self._turn.notify_all()

    def run(self, runs: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return what each of RUNS returns; the error of the first that fails ends them all."""
        if len(runs) == 1 or self._all_kept:
            return [run() for run in runs]
        results: list[Any] = [None] * len(runs)
        errors: list[BaseException] = []
        self._running, self._failed = len(runs), False
        workers = [
            threading.Thread(target=self._one, args=(run, number, results, errors), daemon=True)
            for number, run in enumerate(runs)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException:
            self._fail()
            raise
        finally:
            self._running = 0
        if errors:
            raise errors[0]
        return results

    def _one(
        self,
        run: Callable[[], Any],
        number: int,
        results: list[Any],
        errors: list[BaseException],
    ) -> None:
        with self._turn:
            try:
                if not self._failed:
                    results[number] = run()
            except StoppedError:
                pass
            except BaseException as error:  # it is raised again where the runs were started
                errors.append(error)
                self._failed = True
            finally:
                self._running -= 1
                self._turn.notify_all()

    def _fail(self) -> None:
        with self._turn:
            self._failed = True
            self._turn.notify_all()

    def forget(self) -> None:
        """Forget all pieces."""
        self._pieces.clear()
        self._held = 0
