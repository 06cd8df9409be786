"""One run under way: update, read, validate, write a checkpoint, in an order that can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...converters.common.hints import command
from ...converters.values import Array
from ...errors import DivergedError, MismatchError
from ..config import TrainConfig
from ..data.ahead import Ahead
from ..data.batches import Batch
from ..data.retrieval import paired_bootstrap
from ..evaluation import Scores, improved
from ..export import next_command, write_result
from ..plots import plot_run
from ..schedule import learning_rate
from ..steps.base import Measures, Step
from ..tasks import Task
from .checkpoint import Checkpoint, Checkpoints
from .events import Progress, Started, Updated, Validated
from .interrupts import InterruptFlag, TrainingInterrupted
from .journal import Journal
from .restoring import differing, misshapen, of_type
from .result import TrainResult

METRICS, PLOT, CHECKPOINTS = "metrics.jsonl", "loss.png", "checkpoints"


class Pending(NamedTuple):
    """An update whose loss has not been read."""

    step: int
    batches: Sequence[Batch]
    learning_rate: float
    seconds: float  # that the call took; all of the work where the backend does not run ahead
    waited: float  # seconds for the batches
    read: Callable[[], Measures]


@dataclass
class Carried:
    """What the loop carries from step to step besides the step's own state."""

    best_step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    in_a_row: int = 0


def unmeasured(carried: Carried, metric: str) -> list[str]:
    """Return where CARRIED lacks METRIC, by which a run chooses its best step."""
    measured = {"best": carried.best, "before": carried.before}
    return [
        f"progress.{name}: has no {metric}"
        for name, figures in measured.items()
        if metric not in figures
    ]


class Run:
    """One run under way."""

    def __init__(
        self, config: TrainConfig, task: Task, step: Step, out: Path, progress: Progress
    ) -> None:
        self._config, self._task, self._step, self._out = config, task, step, out
        self._progress = progress
        self._order = task.order(config)
        self._ahead = Ahead(self._batch, config.prefetch.workers, config.prefetch.depth)
        self._checkpoints = Checkpoints(out / CHECKPOINTS, config.keep)
        self._initial = step.weights()
        self._given = {"data": _digests(task), "model": task.frozen(), "backend": step.backend}
        self._carried = Carried()
        self._done = self._restore()
        self._journal = Journal(out / METRICS, until=self._done if self._done else -1)
        self._checkpoints.tidy()  # all that is read was read: nothing else keeps the run from going on
        self._pending: Pending | None = None
        self._mark = time.monotonic()

    def run(self) -> None:
        """Do the updates that are left.

        Raises:
            TrainingInterrupted: on Ctrl-C, after a checkpoint.
            DivergedError: too many updates in a row were not finite.
        """
        self._progress(Started(self._done, self._config.steps, self._epoch_steps()))
        with InterruptFlag() as interrupt, self._ahead:
            if self._done == 0:
                self._validate()
            while self._done < self._config.steps:
                self._advance()
                if interrupt.raised:
                    self._stop(interrupt.kind)

    def finish(self, started: float) -> TrainResult:
        """Write the best parameters and the plot; return what was done since STARTED."""
        best = self._checkpoints.best(self._carried.best_step).arrays
        write_result(self._out, self._task, self._config.adapter, best)
        self.plot()
        return TrainResult(
            out=self._out,
            steps=self._done,
            best_step=self._carried.best_step,
            metric=self._task.objective.metric,
            before=self._carried.before,
            best=self._carried.best,
            test=self._test(best),
            data=_data_report(self._task),
            skipped=self._carried.skipped,
            seconds=round(time.monotonic() - started, 1),
            next=next_command(self._out, self._task, self._config),
        )

    def plot(self) -> None:
        """Draw the run so far."""
        metric = self._task.objective.metric
        plot_run(self._journal.records, metric, self._out / PLOT, best=self._carried.best_step)

    def _advance(self) -> None:
        """Start the next update, read the one before it, and see to what is due."""
        config = self._config
        first = self._done * config.accumulation
        before = self._ahead.waited
        batches = [self._ahead.get(first + part) for part in range(config.accumulation)]
        waited = self._ahead.waited - before
        rate = self._rate(self._done)
        begin = time.monotonic()
        read = self._step.advance(batches, rate)
        pending = Pending(self._done + 1, batches, rate, time.monotonic() - begin, waited, read)
        self._read_pending()
        self._pending = pending
        self._done += 1
        if self._due(config.validate_every):
            self._read_pending()
            self._validate()
        if self._due(config.checkpoint_every):
            self._checkpoint()

    def _batch(self, position: int) -> Batch:
        return self._task.splits["train"].batch(self._order[position])

    def _due(self, every: int) -> bool:
        return self._done % every == 0 or self._done == self._config.steps

    def _rate(self, step: int) -> float:
        schedule = self._config.schedule
        return learning_rate(
            step,
            self._config.steps,
            peak=self._config.optimizer.learning_rate,
            kind=schedule.kind,
            warmup=schedule.warmup,
            final=schedule.final,
        )

    def _read_pending(self) -> None:
        """Read the measures of the pending update, if there is one, and record them."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        measures = pending.read()
        now = time.monotonic()
        tokens = sum(batch.tokens for batch in pending.batches)
        seconds = max(now - self._mark, pending.seconds)
        event = Updated(
            step=pending.step,
            epoch=self._order.epoch((pending.step - 1) * self._config.accumulation),
            loss=measures.loss,
            learning_rate=pending.learning_rate,
            gradient_norm=measures.gradient_norm,
            tokens_per_second=round(tokens / seconds, 1),
            peak_memory=self._step.peak_memory(),
            skipped=not measures.finite,
            waited=round(pending.waited, 6),
        )
        self._mark = now
        self._journal.append(event._asdict())
        self._progress(event)
        self._count(pending, measures)

    def _count(self, pending: Pending, measures: Measures) -> None:
        """Count updates that were skipped, and stop where there are too many in a row."""
        carried = self._carried
        carried.in_a_row = 0 if measures.finite or measures.overflow else carried.in_a_row + 1
        carried.skipped += not measures.finite
        if carried.in_a_row < self._config.nonfinite_limit:
            return
        path = self._out / f"nonfinite-step-{pending.step}.npz"
        arrays = {
            f"{number}.{name}": array
            for number, batch in enumerate(pending.batches)
            for name, array in batch.inputs.items()
        }
        np.savez(path, **arrays)  # type: ignore[arg-type]  # numpy types its one option here too
        raise DivergedError(
            f"{carried.in_a_row} updates in a row up to step {pending.step} had a loss or gradient"
            f" that is not finite; the last batch is in {path}. Try a lower learning rate:"
            " --set optimizer.learning_rate"
        )

    def _validate(self) -> None:
        scores = self._measure("validation")
        metric = self._task.objective.metric
        best = improved(
            scores.metrics[metric],
            self._carried.best.get(metric),
            higher_is_better=self._task.objective.higher_is_better,
        )
        if best:
            self._carried.best_step, self._carried.best = self._done, scores.metrics
            self._checkpoints.write_best(self._done, self._step.weights(), scores.metrics)
        if self._done == 0:
            self._carried.before = scores.metrics
        self._journal.append({"step": self._done, "validation": scores.metrics})
        self._progress(Validated(self._done, scores.metrics, best))
        self._mark = time.monotonic()

    def _measure(self, split: str) -> Scores:
        objective = self._task.objective
        return objective.measure(self._step, self._task.splits[split], self._config.batch_size)

    def _test(self, best: Mapping[str, Array]) -> dict[str, Any]:
        """Measure the test split before and after training."""
        if "test" not in self._task.splits:
            return {}
        self._step.assign(self._initial)
        before = self._measure("test")
        self._step.assign(best)
        after = self._measure("test")
        interval = paired_bootstrap(before.per_example, after.per_example, seed=self._config.seed)
        return {
            "before": before.metrics,
            "after": after.metrics,
            "metric": self._task.objective.metric,
            "difference": interval._asdict(),
        }

    def _checkpoint(self) -> None:
        self._read_pending()
        facts = {"progress": asdict(self._carried), "best_step": self._carried.best_step}
        self._checkpoints.write(Checkpoint(self._done, self._step.state(), facts | self._given))
        self._mark = time.monotonic()

    def _restore(self) -> int:
        """Go back to the last checkpoint and return its step, 0 where there is none.

        Raises:
            MismatchError: it was written for other data, by another backend, or is damaged.
        """
        checkpoint = self._checkpoints.latest()
        if checkpoint is None:
            return 0
        carried, problems = of_type(Carried, checkpoint.facts.get("progress"))
        problems += unmeasured(carried, self._task.objective.metric) if carried else []
        given = {
            "model": self._given["model"],
            **checkpoint.facts,
        }  # version 0.1.0 kept no such hash
        problems += differing(given, self._given)
        problems += misshapen(checkpoint.arrays, self._step.state())
        if problems or carried is None:
            raise MismatchError(f"the run in {self._out} cannot go on", problems)
        self._step.restore(checkpoint.arrays)
        self._carried = carried
        return checkpoint.step

    def _stop(self, kind: type[TrainingInterrupted]) -> None:
        self._checkpoint()
        raise kind(
            f"stopped after step {self._done} of {self._config.steps}, a checkpoint is written;"
            f" go on with: {command('train', self._out, '--resume')}"
        )

    def _epoch_steps(self) -> int:
        examples = self._config.batch_size * self._config.accumulation
        return max(1, len(self._task.splits["train"]) // examples)


def _digests(task: Task) -> dict[str, str]:
    return {name: split.digest for name, split in task.splits.items()}


def _data_report(task: Task) -> dict[str, dict[str, int]]:
    """Return the counts of every split, with the leaks from training into it."""
    return {
        name: split.report | ({"shared_with_train": task.leaks[name]} if name in task.leaks else {})
        for name, split in task.splits.items()
    }
