"""The size of micro-batches by the memory in use: each decision is kept, so that a resumed run repeats it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...errors import TooLittleMemoryError
from ..config import TrainConfig
from ..memory.advice import budget
from ..memory.freed import give_back
from ..memory.readings import read_memory
from .carried import Carried
from .journal import Record, append_record, read_records

LOW, HIGH = 0.5, 0.8  # parts of the budget
FILE: Final = "batch_sizes.jsonl"


def next_size(size: int, used: float, smallest: int, largest: int) -> int:
    """Return the size after updates of SIZE that had USED of the budget in use.

    >>> next_size(32, 0.4, 32, 64), next_size(64, 0.6, 32, 64), next_size(64, 0.9, 32, 64)
    (64, 64, 32)
    """
    if used < LOW:
        return min(2 * size, largest)
    return max(size // 2, smallest) if used > HIGH else size


class Sizes:
    """The sizes of one run's micro-batches.

    Args:
        config: the run.
        folder: of the run; every decision is added to a file there and never taken again: what a
            process finds in use may differ, also between equal runs.
        measure: returns the part of a budget (in MB, or what there is) that was in use since the last call.
        ranks: among which the examples of CONFIG's batches are divided.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        measure: Callable[[float | None], float],
        ranks: int = 1,
    ) -> None:
        self._ranks = ranks
        self._config, self._section, self._measure = config, config.dynamic_batch, measure
        self._file = folder / FILE
        self._taken = {row["step"]: row for row in read_records(self._file)}

    def begin(self, carried: Carried) -> None:
        """Set the first size in CARRIED."""
        carried.batch_size = self._config.smallest_batch
        carried.ceiling = self._config.largest_batch

    def decide(self, carried: Carried, step: int) -> Record | None:
        """Set the size after update STEP in CARRIED; return the record of a change, without the memory."""
        taken = self._taken.get(step) or self._take(carried, step)
        before, size = carried.batch_size, min(taken["batch_size"], carried.ceiling)
        carried.batch_size = size
        return {"step": step, "batch_size": size} if size != before else None

    def _take(self, carried: Carried, step: int) -> Record:
        used = round(self._measure(self._section.budget if self._section else None), 3)
        size = next_size(carried.batch_size, used, self._config.smallest_batch, carried.ceiling)
        return self._keep({"step": step, "batch_size": size, "memory_used": used})

    def _keep(self, record: Record) -> Record:
        self._taken[record["step"]] = record
        append_record(self._file, record)
        return record

    def halved(self, size: int, error: BaseException) -> int:
        """Return half of SIZE, with which memory ran out as ERROR tells.

        Raises:
            TooLittleMemoryError: it cannot be halved.
        """
        smallest = self._config.smallest_batch
        if size // 2 >= smallest:
            return size // 2
        smallest //= self._ranks
        key = "dynamic_batch.min" if self._section else "batch_size"
        raise TooLittleMemoryError(
            f"memory ran out in an update with batches of {smallest} examples; the last checkpoint"
            f" stays. Try --set {key}={max(1, smallest // 2)}, accumulation=2 for the same"
            " update, or shorter lengths"
        ) from error

    def limit(self, carried: Carried, ceiling: int, step: int) -> None:
        """Let no batch after STEP be larger than CEILING; what was decided after it is forgotten."""
        carried.batch_size, carried.ceiling = min(carried.batch_size, ceiling), ceiling
        self._taken = {at: row for at, row in self._taken.items() if at <= step}


def memory_used(megabytes: float | None) -> float:
    """Return the part of a budget that was in use since the last call, and begin to measure again.

    Args:
        megabytes: the budget; ``None`` is the memory of the GPU, or else of the machine.
    """
    give_back()  # what is kept of larger batches is not in use
    readings = read_memory()
    there = budget(readings)
    peak = there.name.replace("active", "peak")
    used = max(readings[there.name], readings.get(peak, 0), readings.get("mlx_peak", 0))
    reset_peaks()
    return used / (1e6 * megabytes if megabytes else there.limit)


def reset_peaks() -> None:
    """Let the frameworks that are imported count their peaks from now on."""
    if mx := _imported("mlx.core"):
        mx.reset_peak_memory()
    torch = _imported("torch")
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def free_memory() -> None:
    """Give back what the frameworks keep of freed memory."""
    if mx := _imported("mlx.core"):
        mx.clear_cache()
    torch = _imported("torch")
    if torch and torch.cuda.is_available():
        torch.cuda.empty_cache()
    give_back()


def _imported(name: str) -> Any:
    return sys.modules.get(name)
