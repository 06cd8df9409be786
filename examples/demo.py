"""The whole bridge on a real model: fine-tune on MLX, go home to PyTorch, ship to Core ML.

Run it with ``make demo``. Every step is weighed; the closing table says what the scales showed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from weighbridge import jobs

STAGES = 8
SERIES = "examples.timeseries:build"
SERIES_MLX = "examples.timeseries:build_mlx"


@dataclass
class Demo:
    """One run of the demo: its folder, its display and what it measured."""

    out: Path
    model: Path
    quick: bool
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show and time one stage."""
        number = len(self.seconds) + 1
        self.overall = getattr(self, "overall", None) or self.progress.add_task("", total=STAGES)
        self.progress.update(self.overall, description=f"[bold]{number}/{STAGES} {name}")
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.progress.advance(self.overall)
        self.progress.console.print(
            f"  {number}/{STAGES} {name}: {self.seconds[name]:.0f} s", highlight=False
        )

    def task(self, name: str, total: int) -> Callable[[int], None]:
        """Show a part of a stage; return what advances it."""
        task = self.progress.add_task(f"  {name}", total=total)

        def advance(amount: int) -> None:
            self.progress.advance(task, amount)
            if self.progress.tasks[self.progress.task_ids.index(task)].finished:
                self.progress.update(task, visible=False)

        return advance

    def options(self, **chosen: Any) -> jobs.Options:
        """Return the options of a job: replace an earlier demo's results, report here."""
        return jobs.Options(force=True, report=self.task, **chosen)

    def keep(self, name: str, verdict: Any) -> None:
        """Remember a verdict; a difference ends the demo."""
        self.verdicts[name] = verdict
        if verdict.status == "DIFFERS":
            from weighbridge.console import show_verdict

            show_verdict(verdict, as_json=False)
            sys.exit(f"{name}: DIFFERS")
