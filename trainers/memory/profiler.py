"""The profiler: a thread that reads memory every so often, and at the end of every update."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from .readings import Sample, read_memory
from .report import MemoryReport, report_of

MOST: Final = 10_000  # samples that are kept


class MemoryProfiler:
    """Samples memory while a ``with`` block runs.

    Call :meth:`step` after every update: the readings taken there are alike, and a leak is looked for
    in them. Without steps it is looked for in the readings of the thread.

    Args:
        interval: seconds between two readings of the thread. It doubles, and every second reading is
            forgotten, whenever there are 10,000.

    Example:
        >>> with MemoryProfiler(interval=0.01) as profiler:
        ...     for number in range(3):
        ...         profiler.step()
        >>> [sample.step for sample in profiler.samples if sample.step]
        [1, 2, 3]
    """

    def __init__(self, interval: float = 0.1) -> None:
        self.samples: list[Sample] = []
        self._interval, self._steps, self._every = interval, 0, 1
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="memory profiler", daemon=True)
        self._begin = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to sample."""
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take a last sample and stop."""
        self._over.set()
        self._thread.join()
        self._sample(None)

    def step(self, number: int | None = None) -> None:
        """Take a sample at the end of an update.

        Args:
            number: of the update; the next one where none is given.
        """
        self._steps = self._steps + 1 if number is None else number
        if self._steps % self._every == 0:
            self._sample(self._steps)

    def report(self, batch_size: int | None = None) -> MemoryReport:
        """Return figures, verdict and advice on what was sampled so far.

        Args:
            batch_size: examples that are in memory at once, if advice on it is wanted.
        """
        with self._lock:
            return report_of(tuple(self.samples), batch_size)

    def _watch(self) -> None:
        self._sample(None)
        while not self._over.wait(self._interval):
            self._sample(None)

    def _sample(self, step: int | None) -> None:
        with self._lock:
            seconds = round(time.monotonic() - self._begin, 4)
            self.samples.append(Sample(seconds, step, read_memory()))
            if len(self.samples) >= MOST:
                self._thin()

    def _thin(self) -> None:
        """Keep half of the updates and half of the other readings, and take half as many from now on."""
        self._interval, self._every = 2 * self._interval, 2 * self._every
        updates = [it for it in self.samples if it.step and it.step % self._every == 0]
        others = [it for it in self.samples if it.step is None]
        self.samples[:] = sorted(updates + others[::2], key=lambda it: it.seconds)
