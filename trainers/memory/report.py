"""What was measured, judged and advised, ready to be written."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .advice import Budget, Facts, advise, budget
from .leaks import Trend, leak_trend
from .plot import plot_memory
from .readings import Sample

LEAKING: Final[tuple[str, ...]] = (
    "process",
    "mlx_active",
    "torch_active",
)  # what a leak would be seen in
MEGABYTE: Final = 1_000_000
REPORT, PLOT = "memory.json", "memory.png"


@dataclass(frozen=True)
class MemoryReport:
    """Memory over a run.

    Attributes:
        samples: all readings.
        unit: what trends are over: ``update``, or ``second`` where too few updates were marked.
        trends: of what a leak would be seen in, by name.
        budget: how much there is.
        advice: lines to read, most urgent first.
    """

    samples: tuple[Sample, ...]
    unit: str
    trends: dict[str, Trend]
    budget: Budget
    advice: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``leak`` if anything leaks, ``too short`` if there were too few readings, or ``steady``."""
        found = {trend.verdict for trend in self.trends.values()}
        return next(kind for kind in ("leak", "steady", "too short") if kind in found)

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values, sizes in MB (1,000,000 bytes)."""
        return {
            "verdict": self.verdict,
            "advice": list(self.advice),
            "unit": self.unit,
            "limit_mb": _megabytes(self.budget.limit),
            "peak_mb": {name: _megabytes(size) for name, size in peaks(self.samples).items()},
            "trends_mb": {name: _rounded(trend) for name, trend in self.trends.items()},
            "samples": [
                {"seconds": it.seconds, "step": it.step}
                | {name: _megabytes(size) for name, size in it.bytes.items()}
                for it in self.samples
            ],
        }

    def write(self, folder: Path) -> None:
        """Write ``memory.json`` and ``memory.png`` to FOLDER."""
        text = json.dumps(self.document(), indent=1) + "\n"
        (folder / REPORT).write_text(text, encoding="utf-8")
        plot_memory(self.samples, folder / PLOT, limit=self.budget.limit)


def report_of(samples: tuple[Sample, ...], batch_size: int | None = None) -> MemoryReport:
    """Judge SAMPLES and advise on them.

    Args:
        samples: at least one.
        batch_size: examples that are in memory at once, if advice on it is wanted.
    """
    marked = [sample for sample in samples if sample.step is not None]
    trends = {name: _trend(name, marked) for name in LEAKING if name in samples[-1].bytes}
    unit = "update"
    if all(trend.verdict == "too short" for trend in trends.values()):
        unit, trends = "second", {name: _trend(name, samples) for name in trends}
    room = budget(samples[-1].bytes)
    facts = Facts(peaks(samples), _passing(samples, room.name), unit, batch_size)
    return MemoryReport(samples, unit, trends, room, tuple(advise(facts, trends, room)))


def peaks(samples: Sequence[Sample]) -> dict[str, int]:
    """Return the largest reading of everything by its name."""
    largest: dict[str, int] = {}
    for sample in samples:
        for name, size in sample.bytes.items():
            largest[name] = max(size, largest.get(name, 0))
    return largest


def _passing(samples: Sequence[Sample], name: str) -> int:
    """Return what an update needs in passing: the peak less the median at the ends of updates.

    A framework's own count is taken where there is one, else NAME's.
    """
    for active, peak in (("mlx_active", "mlx_peak"), ("torch_active", "torch_peak"), (name, name)):
        ends = [
            sample.bytes[active] for sample in samples if sample.step and active in sample.bytes
        ]
        if ends and (most := peaks(samples).get(peak)):
            return max(0, most - int(statistics.median(ends)))
    return 0


def _trend(name: str, samples: Sequence[Sample]) -> Trend:
    kept = [sample for sample in samples if name in sample.bytes]
    places = [sample.seconds if sample.step is None else sample.step for sample in kept]
    return leak_trend(places, [_held(sample.bytes, name) for sample in kept])


def _held(sizes: Mapping[str, int], name: str) -> int:
    """Return the reading NAME without what MLX keeps for later, which a Mac counts to the process."""
    unified = name == "process" and sys.platform == "darwin"
    return sizes[name] - (sizes.get("mlx_cache", 0) if unified else 0)


def _rounded(trend: Trend) -> dict[str, Any]:
    sizes = {name: _megabytes(size) for name, size in trend._asdict().items() if name != "verdict"}
    return {"verdict": trend.verdict, **sizes}


def _megabytes(size: float) -> float:
    return round(size / MEGABYTE, 4)
