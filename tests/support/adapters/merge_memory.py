"""How much memory a merge takes."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.checkpoints.open import open_checkpoint
from weighbridge.tests.support.adapters import made
from weighbridge.tests.support.side_by_side import Run, environment, run

TIMES, SPARE = 3, 150e6  # the bar: so many times the largest tensor, and so many bytes
TURNS: Final = ("first", "second")  # nothing is known of the model yet; what was found out is kept
INTERVAL: Final = 0.01  # seconds


class Watch(threading.Thread):
    """Look at the resident memory of the processes started from now on, summed; keep the peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()
        self._here = psutil.Process()
        self._earlier = set(self._here.children())

    def run(self) -> None:
        """Look until told to stop."""
        while not self._done.wait(INTERVAL):
            self.peak = max(self.peak, sum(map(resident, self._later())))

    def _later(self) -> Iterator[psutil.Process]:
        for child in set(self._here.children()) - self._earlier:
            with suppress(psutil.Error):
                yield from (child, *child.children(recursive=True))

    def stop(self) -> float:
        """Return the peak in MB."""
        self._done.set()
        self.join()
        return self.peak / 1e6


def resident(process: psutil.Process) -> int:
    """Return the resident memory of PROCESS in bytes, nothing if it has ended."""
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def watched(command: list[str], variables: Mapping[str, str]) -> tuple[Run, float]:
    """Run COMMAND; return what it took, and the peak in MB of all its processes together."""
    watch = Watch()
    watch.start()
    try:
        return run(command, variables), watch.stop()
    finally:
        watch.stop()


def projections(headers: dict[str, Header]) -> dict[str, tuple[int, int]]:
    """Return the shapes of all modules with a matrix but the embedding."""
    return {
        name.removesuffix(".weight"): header.shape
        for name, header in headers.items()
        if len(header.shape) == 2 and "embed" not in name
    }


def measure(folder: Path, dialect: str, rank: int, check: str) -> Iterator[dict[str, Any]]:
    """Merge an adapter of DIALECT and RANK into the base in FOLDER twice, each time as a process."""
    base, adapter, target = folder / "base", folder / f"{dialect}-{rank}", folder / "target"
    headers = open_checkpoint(base).headers
    updates = made.random_updates(projections(headers), rank, seed=1)
    made.write_adapter(adapter, updates, dialect)
    size = sum(update.a.nbytes + update.b.nbytes for update in updates.values())
    del updates
    command = [sys.executable, "-m", "weighbridge", "merge", *map(str, (base, adapter, target))]
    largest = max(header.nbytes for header in headers.values())
    bar = TIMES * largest + SPARE
    variables = environment(folder) | {"WEIGHBRIDGE_CACHE": str(folder / f"cache-{dialect}-{rank}")}
    for turn in TURNS:
        took, together = watched([*command, "--check", check, "--json"], variables)
        shutil.rmtree(target)
        yield {
            "adapter": dialect,
            "rank": rank,
            "check": check,
            "turn": turn,
            "gigabytes": round(sum(header.nbytes for header in headers.values()) / 1e9, 3),
            "adapter_megabytes": round(size / 1e6, 1),
            "largest_megabytes": round(largest / 1e6, 1),
            "peak_megabytes": round(max(took.megabytes, together), 1),
            "peak_of_one_process": round(took.megabytes, 1),
            "bar_megabytes": round(bar / 1e6, 1),
            "seconds": round(took.seconds, 1),
            "processor_seconds": round(took.processor, 1),
            "ok": max(took.megabytes, together) * 1e6 <= bar,
        }
    shutil.rmtree(adapter)
