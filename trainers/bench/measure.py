"""One row of a benchmark: a short training and inference, timed, with the phases of an update."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from ..config import TrainConfig
from ..data.batches import Batch
from ..runs.drawing import Draws
from ..runs.events import MEGABYTE
from ..runs.loop import computing, make_step
from ..runs.sizes import memory_used, next_size
from ..steps.base import Measures, Step
from ..tasks import build_task
from .phases import phases

TURNS: Final = 10  # in which phases are timed, at least: in fewer, what other programs do shows
WARM: Final = 2  # updates before the clock runs: kernels are compiled in them
Figures = dict[str, Any]


def measure(config: TrainConfig, backend: str, updates: int, *, lazy: bool = True) -> Figures:
    """Return the figures of UPDATES updates of CONFIG in BACKEND, and of as many forward passes.

    Args:
        config: the run.
        backend: ``mlx`` or ``torch``.
        updates: timed ones; two more come before them at every size of a batch.
        lazy: read the loss of an update while the next one runs.
    """
    with computing(backend, config):
        return _measured(config, backend, updates, lazy=lazy)


def _measured(config: TrainConfig, backend: str, updates: int, *, lazy: bool) -> Figures:
    task = build_task(config)
    step = make_step(backend, task, config)
    rate = config.optimizer.learning_rate
    with Draws(task.splits["train"], task.order(config), config) as draws:
        trained = Trained(step, config, draws, lazy=lazy)
        found = trained.figures(updates)
        found["peak_memory_mb"] = round(step.peak_memory() / MEGABYTE, 1)
        batch = trained.batch
    found |= _inference(step, batch, updates)
    apart = phases(step, batch, rate, max(updates, TURNS))
    found |= {"phases": apart.milliseconds, "phases_percent": apart.percent}
    return found | {"device": step.device}


class Trained:
    """A short training whose size of batches follows the memory in use, if CONFIG says so."""

    def __init__(self, step: Step, config: TrainConfig, draws: Draws, *, lazy: bool) -> None:
        self._step, self._config, self._draws, self._lazy = step, config, draws, lazy
        self._position, self._size = 0, config.smallest_batch
        self._read: Callable[[], Measures] | None = None
        self.batch: Batch
        self._loss = float("nan")

    def figures(self, updates: int) -> Figures:
        """Do UPDATES timed updates after the warm-up, and return their figures."""
        self._grow()
        for _ in range(WARM):
            self._update()
        seconds, rows = [], 0
        worked = -time.process_time()
        begin = mark = time.perf_counter()
        for _ in range(updates):
            rows += self._update()
            seconds.append(time.perf_counter() - mark)
            mark = time.perf_counter()
        self._finish()
        took, worked = time.perf_counter() - begin, worked + time.process_time()
        return {
            "batch_size": self._size,
            "examples": self._size * self._config.accumulation,
            "step_ms": round(1000 * statistics.median(seconds), 3),
            "samples_per_second": round(rows / took, 2),
            "samples_per_processor_second": round(rows / worked, 2),
            "final_loss": round(self._loss, 6),
        }

    def _grow(self) -> None:
        """Let the size of a batch follow the memory in use until it stays."""
        dynamic = self._config.dynamic_batch
        while dynamic:
            for _ in range(dynamic.every):
                self._update()
            self._finish()
            used = memory_used(dynamic.budget)
            size = next_size(self._size, used, dynamic.min, dynamic.max)
            if size == self._size:
                break
            self._size = size

    def _update(self) -> int:
        """Do an update, and return its examples."""
        drawn = self._draws.next(self._position, self._size)
        self._position, self.batch = drawn.position, drawn.batches[0]
        read = self._step.advance(drawn.batches, self._config.optimizer.learning_rate)
        self._finish()
        self._read = read
        if not self._lazy:
            self._finish()
        return sum(batch.rows for batch in drawn.batches)

    def _finish(self) -> None:
        if self._read is not None:
            self._loss, self._read = self._read().loss, None


def _inference(step: Step, batch: Batch, times: int) -> Figures:
    """Return how fast STEP is forward, in eval mode."""
    step.loss(batch.inputs)
    begin = time.perf_counter()
    for _ in range(times):
        step.loss(batch.inputs)
    took = time.perf_counter() - begin
    return {"inference_samples_per_second": round(times * batch.rows / took, 2)}
