"""One run under way: update, read, validate, write a checkpoint, in an order that can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from ...converters.common.hints import command
from ...converters.common.memory import ran_out
from ...converters.values import Array
from ...errors import MismatchError
from ..config import TrainConfig
from ..data.retrieval import paired_bootstrap
from ..evaluation import Scores, improved
from ..export import base_record, command_after, name_apart, next_command, write_npz, write_result
from ..plots import plot_run, plot_speed
from ..ranks import RANDOM
from ..schedule import learning_rate
from ..steps.base import Measures, Step
from ..tasks import Task
from ..watching.held import NOTHING, Held
from ..watching.points import DUE, LastPoint, facts_of
from ..watching.watchdog import Watchdog, Watched
from .carried import Carried
from .checkpoint import Checkpoint, Checkpoints
from .clock import Clock, memory_figures
from .divergence import refuse_lost, refuse_many
from .drawing import Drawn, Draws
from .events import Notice, Progress, Started, Updated, Validated, ignore
from .interrupts import InterruptFlag, TrainingInterrupted
from .journal import Journal
from .length import length_of
from .restoring import differing, misshapen, of_type
from .result import TrainResult, data_report
from .sizes import Sizes, free_memory, memory_used

METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
PLOT, SPEED = "loss.png", "speed.png"


class Watcher(NamedTuple):
    """What a run calls.

    Attributes:
        progress: with every event; must not raise.
        complete: with a folder that has got whole weights, to put beside them what else a model needs.
    """

    progress: Progress = ignore
    complete: Callable[[Path], None] = lambda _folder: None


class Pending(NamedTuple):
    """An update whose loss has not been read."""

    step: int
    epoch: int
    drawn: Drawn
    learning_rate: float
    seconds: float  # that the call took; all of the work where the backend does not run ahead
    read: Callable[[], Measures]
    held: Held  # the state after it


class Run:
    """One run under way."""

    def __init__(
        self, config: TrainConfig, task: Task, step: Step, out: Path, watcher: Watcher
    ) -> None:
        self.ranks, self._own = step.ranks, step.ranks.part(config)
        config = self.ranks.whole(config)
        self._config, self._task, self._step, self._out = config, task, step, out
        self._progress, self._complete = watcher
        self._base = cache(partial(base_record, task))
        self._order = task.order(config)
        self._draws = Draws(task.splits["train"], self._order, config, self._own)
        self._length = length_of(config, self._order)
        self._checkpoints = Checkpoints(out / CHECKPOINTS, config.keep)
        self._given: dict[str, Any] = {"data": _digests(task), "model": task.frozen()}
        self._given |= {"backend": step.backend, "ranks": self.ranks.size}
        self.ranks.require_alike(self._given)
        if self.ranks.size > 1:  # what was drawn at random is not the same on each
            step.assign(self.ranks.first(step.weights))
        self._initial = step.weights()
        self._carried = Carried()
        self._sizes = Sizes(config, out, memory_used, self._own.step)
        self._sizes.begin(self._carried)
        self._last = LastPoint(self._checkpoints, self._given)
        self._watchdog = Watchdog(out, config.watchdog, self._last.write)
        self._held = self.ranks.size == 1 and config.watchdog is not None
        self._owes = False
        self._done = self._restore(self._latest())
        self._begin()
        self.ranks.write(lambda: self._checkpoints.tidy(name_apart))  # all is read: the run goes on

    def _begin(self) -> None:
        """Forget what was recorded after the last checkpoint: it is done again."""
        until = self._done if self._carried.before else -1
        self._journal = Journal(self._out / METRICS, until=until, due=self._owes)
        self._pending: Pending | None = None
        self._clock = Clock(self._journal.records, self._own.step)

    def run(self) -> None:
        """Do the updates that are left.

        Raises:
            TrainingInterrupted: on Ctrl-C, after a checkpoint.
            DivergedError: too many updates in a row were not finite.
            TooLittleMemoryError: memory ran out, and batches cannot be smaller.
        """
        self._progress(Started(self._done, self._length.steps, self._epoch_steps()))
        with InterruptFlag() as interrupt, self._watchdog, self._draws:
            if not self._carried.before:
                self._validate()
                if self._config.dynamic_batch:
                    self._checkpoint()  # to go back to where memory runs out at once
            while not self._over():
                self._advance_or_shrink()
                if any(stopping := self.ranks.exchange(interrupt.kind)):
                    self._stop(next(filter(None, stopping)))
        if self._carried.stalled(self._config.early_stopping):
            waited = self._carried.waited
            self._progress(Notice(f"stopped early: {waited} validations in a row were no better"))

    def finish(self, started: float) -> TrainResult:
        """Write the best parameters and the plot; return what was done since STARTED."""
        self._carried.require_chosen(self._task.objective.metric, self._checkpoints.folder)
        best = self._checkpoints.best(self._carried.best_step).arrays
        self._export(self._out, best)
        if self._config.npz:
            write_npz(self._out)
        self.plot()
        return TrainResult(
            out=self._out,
            steps=self._done,
            ranks=self.ranks.size,
            best_step=self._carried.best_step,
            metric=self._task.objective.metric,
            before=self._carried.before,
            best=self._carried.best,
            test=self._test(best),
            data=data_report(self._task),
            skipped=self._carried.skipped,
            seconds=round(time.monotonic() - started, 1),
            next=(onward := next_command(self._out, self._task, self._config)),
            note=command_after(onward, self._out, self._config),
        )

    def _export(self, folder: Path, weights: Mapping[str, Array]) -> Path:
        """Write to FOLDER, which is returned, what other commands read: an adapter, or whole weights."""
        write_result(folder, self._task, self._config.adapter, weights, self._base)
        self._complete(folder)
        return folder

    def plot(self) -> None:
        """Draw the run so far."""
        metric = self._task.objective.metric
        plot_run(self._journal.records, metric, self._out / PLOT, best=self._carried.best_step)
        plot_speed(self._journal.records, self._out / SPEED)

    def _over(self) -> bool:
        """Return whether the run has come to its end, or validations no longer improve."""
        stalled = self._carried.stalled(self._config.early_stopping)
        over = stalled or self._length.over(self._done, self._carried.position)
        return over and not self._owes

    def _advance_or_shrink(self) -> None:
        """Do an update; where memory runs out go back to the last checkpoint with half the batch."""
        try:
            self._advance()
        except Exception as error:
            if not ran_out(error):
                raise
            self._shrink(error)

    def _shrink(self, error: Exception) -> None:
        ceiling = self._sizes.halved(self._carried.batch_size, error)
        self._pending = None
        free_memory()
        self._done = self._restore(self._latest())
        self._sizes.limit(self._carried, ceiling, self._done)
        self._begin()
        text = f"memory ran out: going on from step {self._done} with at most {ceiling} examples at once"
        self._progress(Notice(text))
        self._checkpoint()

    def _advance(self) -> None:
        """Do an update, or what a run that goes on owes to its last one, and see to what is due."""
        if not self._owes:
            self._update()
        self._owes = False
        self._see_to_due()
        if self._over() or self._due(self._config.checkpoint_every):
            self._checkpoint()

    def _update(self) -> None:
        """Start the next update; read it, or the one before it where updates run ahead."""
        config, position = self._config, self._carried.position
        self._watchdog.beat()
        drawn = self._draws.next(position, self._carried.batch_size)
        rate, begin = self._rate(self._done, position), time.monotonic()
        read = self._step.advance(drawn.batches, rate)
        epoch = self._order.epoch(position // config.largest_batch)
        seconds = time.monotonic() - begin
        held = self._step.held() if self._held else NOTHING
        pending = Pending(self._done + 1, epoch, drawn, rate, seconds, read, held)
        self._read_pending()
        self._pending = pending
        self._done += 1
        self._carried.position = drawn.position
        if not self._step.ahead:
            self._read_pending()

    def _see_to_due(self) -> None:
        """Choose the size of the next micro-batches and validate, where that is due after this update."""
        self._resize()
        if self._due(self._config.validate_every):
            self._read_pending()
            self._validate()
        if self._pending is None:
            self._last.settle(self._carried)

    def _resize(self) -> None:
        """Set the size of the next micro-batches, if it is time."""
        dynamic = self._config.dynamic_batch
        if dynamic and self._done % dynamic.every == 0:
            self._read_pending()
            if change := self._sizes.decide(self._carried, self._done):
                self._journal.append(change)

    def _due(self, every: int) -> bool:
        return self._done % every == 0 or self._length.over(self._done, self._carried.position)

    def _rate(self, done: int, position: int) -> float:
        schedule = self._config.schedule
        step, steps = self._length.progress(done, position)
        return learning_rate(
            step,
            steps,
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
        event = Updated(
            step=pending.step,
            epoch=pending.epoch,
            batch_size=pending.drawn.size,
            loss=measures.loss,
            learning_rate=pending.learning_rate,
            gradient_norm=measures.gradient_norm,
            skipped=not measures.finite,
            **self._clock.figures(pending.drawn, pending.seconds),
            **memory_figures(self._step.peak_memory()),
        )
        self._journal.append(event._asdict())
        self._progress(event)
        self._count(pending, measures)
        self._last.reach(pending.step, pending.held, self._carried)

    def _count(self, pending: Pending, measures: Measures) -> None:
        """Count updates that were skipped, and stop where there are too many in a row."""
        carried = self._carried
        carried.in_a_row = 0 if measures.finite or measures.overflow else carried.in_a_row + 1
        carried.skipped += not measures.finite
        path = self._out / f"nonfinite-step-{pending.step}.npz"
        refuse_many(carried, self._config.nonfinite_limit, pending.drawn.batches, path)

    def _validate(self) -> None:
        scores = self.ranks.first(lambda: self._measure("validation"))
        metric = self._task.objective.metric
        best = improved(
            scores.metrics[metric],
            self._carried.best.get(metric),
            higher_is_better=self._task.objective.higher_is_better,
        )
        if best:
            self._carried.best_step, self._carried.best = self._done, scores.metrics
            self.ranks.write(
                lambda: self._checkpoints.write_best(
                    self._done, self._step.weights(), scores.metrics
                )
            )
        if self._done == 0:
            self._carried.before = scores.metrics
        self._carried.note(
            scores.metrics[metric],
            self._config.early_stopping,
            higher_is_better=self._task.objective.higher_is_better,
        )
        self._journal.append({"step": self._done, "validation": scores.metrics})
        self._progress(Validated(self._done, scores.metrics, best))
        loss, kept = scores.metrics.get("loss", 0.0), self._checkpoints.folder
        refuse_lost(self._carried, loss, self._done, kept, over=self._over())
        self._clock.start()

    def _measure(self, split: str) -> Scores:
        objective = self._task.objective
        size = self._config.batch_size // self._own.step
        step = cast(Step, Watched(self._step, self._watchdog.beat))
        return objective.measure(step, self._task.splits[split], size)

    def _test(self, best: Mapping[str, Array]) -> dict[str, Any]:
        """Measure the test split before and after training."""
        if "test" not in self._task.splits:
            return {}
        self._step.assign(self._initial)
        before = self._measure("test")
        self._step.assign(best)
        after = self._measure("test")
        figures = {
            "before": before.metrics,
            "after": after.metrics,
            "metric": self._task.objective.metric,
        }
        if len(after.each) < 2:
            return figures  # nothing to resample
        interval = paired_bootstrap(before.each, after.each, after.counts, seed=self._config.seed)
        return figures | {
            "difference": {"of": after.of, "count": len(after.each)} | interval._asdict()
        }

    def _checkpoint(self) -> None:
        self._read_pending()
        self._watchdog.beat()
        random = self.ranks.gathered(self._step.random())
        self.ranks.write(
            lambda: self._checkpoints.write(
                Checkpoint(
                    self._done,
                    self._step.state() | {RANDOM: random},
                    facts_of(self._carried, due=self._owes) | self._given,
                ),
                lambda folder: name_apart(self._export(folder, self._step.weights())),
            )
        )
        self._last.forget()
        self._clock.start()

    def _latest(self) -> Checkpoint | None:
        return self.ranks.first(self._checkpoints.latest)

    def _restore(self, checkpoint: Checkpoint | None) -> int:
        """Go back to CHECKPOINT and return its step, 0 where there is none.

        Raises:
            MismatchError: it was written for other data, by another backend, or is damaged.
        """
        self._last.forget()
        self._owes = checkpoint is not None and checkpoint.facts.get(DUE, False)
        if checkpoint is None:
            return 0
        carried, problems = of_type(Carried, checkpoint.facts.get("progress"))
        problems += carried.unmeasured(self._task.objective.metric) if carried else []
        given = {
            "model": self._given["model"],
            "ranks": 1,
            **checkpoint.facts,
        }  # earlier versions did not write these
        arrays = self.ranks.own(checkpoint.arrays)
        problems += differing(given, self._given)
        if (given["ranks"], given.get("backend")) == (self.ranks.size, self._step.backend):
            problems += misshapen(arrays, self._step.state())
        if problems or carried is None:
            raise MismatchError(f"the run in {self._out} cannot go on", problems)
        self._step.restore(arrays)
        self._carried = carried
        return checkpoint.step

    def _stop(self, kind: type[TrainingInterrupted]) -> None:
        self._checkpoint()
        raise kind(
            f"stopped after step {self._done} of {self._length.steps}, a checkpoint is written;"
            f" go on with: {command('train', self._out, '--resume')}"
        )

    def _epoch_steps(self) -> int:
        examples = self._config.smallest_batch * self._config.accumulation
        return max(1, len(self._task.splits["train"]) // examples)


def _digests(task: Task) -> dict[str, str]:
    return {name: split.digest for name, split in task.splits.items()}
