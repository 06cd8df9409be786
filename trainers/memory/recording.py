"""The memory of a training run, recorded into its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..runs.events import Event, Notice, Progress, Updated
from .profiler import MemoryProfiler
from .report import REPORT


@contextmanager
def recorded(progress: Progress, folder: Path, batch_size: int | None) -> Iterator[Progress]:
    """Sample memory while a run goes on, and leave ``memory.json`` and ``memory.png`` in its folder.

    Args:
        progress: called with every event, and with the verdict and the advice at the end.
        folder: the run's; an interrupted run leaves its report there too.
        batch_size: examples in memory at once.

    Yields:
        What the run is to call with its events.
    """
    profiler = MemoryProfiler()

    def watch(event: Event) -> None:
        progress(event)
        if isinstance(event, Updated):
            profiler.step(event.step)

    try:
        with profiler:
            yield watch
    finally:
        if folder.is_dir():
            report = profiler.report(batch_size)
            report.write(folder)
            for line in (f"memory: {report.verdict} ({folder / REPORT})", *report.advice):
                progress(Notice(line))
