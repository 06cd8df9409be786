"""The figures of an update that depend on the machine: time, memory, and how busy it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from .drawing import Drawn
from .events import MEGABYTE
from .journal import Record


class Clock:
    """Takes the time of updates.

    Args:
        records: of the run so far; the seconds of the processes before this one count.
        ranks: that share the examples of an update; this one's stand for all.
    """

    def __init__(self, records: Sequence[Record], ranks: int = 1) -> None:
        self._ranks = ranks
        before = (record["elapsed"] for record in reversed(records) if "elapsed" in record)
        self._before = float(next(before, 0.0))
        self._begin = time.monotonic()
        self.start()

    def start(self) -> None:
        """Let the time of the next update begin now."""
        self._mark, self._processors = time.monotonic(), time.process_time()

    def figures(self, drawn: Drawn, seconds: float) -> dict[str, Any]:
        """Return the figures of an update that has just ended, and begin to time the next one.

        Args:
            drawn: its micro-batches.
            seconds: that the call took which started it.
        """
        now, processors = time.monotonic(), time.process_time()
        took = max(now - self._mark, seconds, 1e-9)
        busy = (processors - self._processors) / max(now - self._mark, 1e-9)
        self._mark, self._processors = now, processors
        samples, tokens = (
            self._ranks * sum(them)
            for them in zip(*((it.rows, it.tokens) for it in drawn.batches), strict=True)
        )
        return {
            "elapsed": round(self._before + now - self._begin, 3),
            "samples_per_second": round(samples / took, 2),
            "tokens_per_second": round(tokens / took, 1),
            "waited": round(drawn.waited, 6),
            "processors": round(busy, 2),
            "device_utilisation": utilisation(),
        }


def memory_figures(peak: int) -> dict[str, float]:
    """Return the PEAK of the backend, in bytes, and the size of the process, both in MB."""
    import psutil

    resident = psutil.Process().memory_info().rss
    return {
        "peak_memory_mb": round(peak / MEGABYTE, 1),
        "process_mb": round(resident / MEGABYTE, 1),
    }


def utilisation() -> float | None:
    """Return the part of the time in which the GPU was busy lately; ``None`` where nothing tells."""
    read = _reader()
    with suppress(Exception):  # a driver that goes away is no reason to stop
        return read() if read else None
    return None


@cache
def _reader() -> Callable[[], float] | None:
    """Return what reads the utilisation of the first NVIDIA GPU, if its driver can be asked."""
    try:
        pynvml: Any = import_module("pynvml")
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:
        return None
    return lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
