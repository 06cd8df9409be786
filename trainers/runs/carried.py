"""What a run carries from step to step besides the state of the step itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DivergedError
from ..configuration.loop import EarlyStopping
from ..evaluation import improved


@dataclass
class Carried:
    """What the loop carries from step to step.

    Attributes:
        best_step: the step of the best validation.
        best: its figures.
        before: the figures before the first update.
        skipped: updates that were not finite.
        in_a_row: how many of them were the last ones.
        position: examples drawn from the order of the data, repeated ones included.
        batch_size: examples in the next micro-batch.
        ceiling: the most that a micro-batch may have after memory ran out.
        mark: the figure that early stopping holds new ones against; ``None`` before the first.
        waited: validations since then that were no better.
    """

    best_step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    in_a_row: int = 0
    position: int = 0
    batch_size: int = 0
    ceiling: int = 0
    mark: float | None = None
    waited: int = 0

    def unmeasured(self, metric: str) -> list[str]:
        """Return where METRIC is lacking, by which a run chooses its best step."""
        measured = {"best": self.best, "before": self.before}
        return [
            f"progress.{name}: has no {metric}"
            for name, figures in measured.items()
            if metric not in figures
        ]

    def require_chosen(self, metric: str, kept: Path) -> None:
        """Refuse to call weights the best by METRIC where nothing says so.

        Raises:
            DivergedError: no validation has found a number; says that checkpoints are KEPT.
        """
        if not math.isfinite(self.best[metric]):
            raise DivergedError(
                f"{metric} was not finite in any validation, so nothing says which"
                f" weights are best; the last are in {kept}. Mend {metric}, or set another metric"
            )

    def stalled(self, stopping: EarlyStopping | None) -> bool:
        """Return whether as many validations in a row were no better as STOPPING waits for."""
        return stopping is not None and self.waited >= stopping.patience

    def note(
        self, figure: float, stopping: EarlyStopping | None, *, higher_is_better: bool
    ) -> None:
        """Count a validation with FIGURE for early STOPPING."""
        delta = stopping.min_delta if stopping else 0.0
        bar = None if self.mark is None else self.mark + (delta if higher_is_better else -delta)
        if improved(figure, bar, higher_is_better=higher_is_better):
            self.mark, self.waited = figure, 0
        else:
            self.waited += 1
