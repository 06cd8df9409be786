"""Merge an adapter into a base of 3 GB: the peak of resident memory against the largest tensor.

    python benchmarks/adapters/merge_memory.py [--gigabytes 3] [--rank 16] [--check none] [--folder DIR]

A Llama in bfloat16 whose every projection is changed, the head too: the head is as large as the
largest tensor. The peak is the largest sum of the resident memory of all processes of a merge,
looked at every 10 ms, and beside it the largest peak of a single process, as the system counts it.
The bar is three times the largest tensor and 150 MB. Each merge is run twice: the first time nothing is
kept of what the libraries said of the model, and asking them is part of the merge. Values are random and adapters float32. The
model is made in DIR and removed. Writes ``results/adapters_merge_memory.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import psutil

from weighbridge.benchmarks.adapters import made
from weighbridge.benchmarks.side_by_side import Run, environment, machine, run
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.checkpoints.open import open_checkpoint

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_merge_memory.json"
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


def show(row: dict[str, Any]) -> str:
    """Return ROW as a line."""
    return (
        f"{row['gigabytes']} GB, {row['adapter']:4} of rank {row['rank']:2}"
        f" ({row['adapter_megabytes']} MB), check {row['check']}, {row['turn']} time: peak"
        f" {row['peak_megabytes']} MB, bar {row['bar_megabytes']} MB (largest tensor {row['largest_megabytes']} MB),"
        f" {row['seconds']} s{'' if row['ok'] else '  TOO MUCH'}"
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--rank", type=int, nargs="+", default=[16])
    parser.add_argument("--check", nargs="+", default=["none"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        made.write_large(folder / "base", arguments.gigabytes * 1e9)
        for dialect, rank, check in product(made.FILE, arguments.rank, arguments.check):
            for row in measure(folder, dialect, rank, check):
                rows.append(row)
                print(show(row), flush=True)
    document = {"cases": rows, "ok": all(row["ok"] for row in rows), "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
