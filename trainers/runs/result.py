"""What a training run did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..tasks import Task

UNHELPED: Final = "no validation was better than the one before the first update, so what is written is what the run began with"


@dataclass(frozen=True)
class TrainResult:
    """What a run did.

    Attributes:
        out: the run's folder.
        steps: updates done.
        ranks: processes that shared them.
        best_step: the step whose parameters were kept; 0 where training never helped.
        metric: the figure that chose it.
        before: validation figures at step 0.
        best: validation figures at the best step.
        test: ``before`` and ``after``, if there is a test split; it chose nothing. The
            ``difference`` is that of the figure ``of``, with a 95 % interval over ``count``
            examples, or batches where only these have a figure.
        data: what was found in the data, by split.
        skipped: updates skipped because they were not finite.
        seconds: of this process.
        next: a command that makes use of the run.
        note: the command after that, or why its check cannot decide; empty where neither is needed.
    """

    out: Path
    steps: int
    ranks: int
    best_step: int
    metric: str
    before: Mapping[str, float]
    best: Mapping[str, float]
    test: Mapping[str, Any]
    data: Mapping[str, Mapping[str, int]]
    skipped: int
    seconds: float
    next: str
    note: str = ""

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self) | {"out": str(self.out)}

    def summary(self) -> str:
        """Return the run in a few lines."""
        before, best = self.before[self.metric], self.best[self.metric]
        where = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        time = f"trained {self.steps} steps in {self.seconds:.0f} s{where}"
        choice = (
            f"best at step {self.best_step}: validation {self.metric} {before:.4f} -> {best:.4f}"
        )
        lines = [f"{time}; {choice}"]
        if self.test:
            lines.append(_describe_test(self.test))
        if self.best_step == 0:
            lines.append(UNHELPED)
        if self.skipped:
            lines.append(f"{self.skipped} updates were skipped: not finite")
        last = [f"Next: {self.next}", *filter(None, [self.note])]
        return "\n".join([*lines, str(self.out), *last])


def _describe_test(test: Mapping[str, Any]) -> str:
    """Return the chosen figure, and the one that there is an interval of, which may be another."""
    change = test.get("difference")
    names = dict.fromkeys([test["metric"], *([change["of"]] if change else [])])
    figures = ", ".join(f"{it} {test['before'][it]:.4f} -> {test['after'][it]:.4f}" for it in names)
    if not change:
        return f"test {figures}"
    return (
        f"test {figures}: change {change['difference']:+.4f}"
        f" (95 % interval {change['low']:+.4f} to {change['high']:+.4f}, n = {change['count']})"
    )


def data_report(task: Task) -> dict[str, dict[str, int]]:
    """Return the counts of every split, with the leaks from training into it."""
    return {
        name: split.report | ({"shared_with_train": task.leaks[name]} if name in task.leaks else {})
        for name, split in task.splits.items()
    }
