"""A checkpoint as it would be after a map, nothing written: each tensor is made when it is read."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import numpy as np

from ...checkpoints.base import Checkpoint
from ...checkpoints.derived import Derived
from ...values import Array
from ..binding.actions import dense
from ..binding.plan import Plan, Step
from .copies import Range
from .execution import byte_ranges


class Mapped(Derived):
    """The targets of a plan, read through it.

    A tensor that is made of byte ranges of its sources is read from these. Of another one the whole
    step is computed; what it makes beside the tensor asked for is kept until another step is, so
    reading a layout in its order computes nothing twice.
    """

    def __init__(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """Show what PLAN, which merges no updates, makes of CHECKPOINT.

        Raises:
            ValueError: the plan merges updates.
        """
        if plan.updates:
            raise ValueError("a plan that merges updates must be executed, not viewed")
        super().__init__(checkpoint, plan.layout)
        self._plan = plan
        self._steps = {name: step for step in plan.steps for name in step.target_names}
        self._beside: dict[str, Array] = {}
        self._lock = Lock()

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        step = self._steps[name]
        if not step.copies:
            return self._made(name, step)
        if step.rule.keeps_layout:
            return self._own.read(step.source_names[0])
        return self._gathered(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        step = self._steps[name]
        if not step.copies:
            yield from super().stream(name, start, stop)
            return
        stop = self.headers[name].nbytes if stop is None else stop
        for source, first, last in clipped(byte_ranges(step, self._plan)[name], start, stop):
            yield from self._own.stream(source, first, last)

    def _made(self, name: str, step: Step) -> Array:
        """Return tensor NAME, computed by STEP or beside the one before."""
        with self._lock:
            if name not in self._beside:
                sources = {source: self._own.read(source) for source in step.source_names}
                self._beside = dict(dense(step, sources))
            return np.array(self._beside.pop(name), order="C")


def clipped(ranges: list[Range], start: int, stop: int) -> Iterator[Range]:
    """Yield those parts of RANGES, end to end, that lie from START to STOP.

    >>> list(clipped([Range("a", 10, 14), Range("b", 0, 4)], 2, 6))
    [Range(source='a', start=12, stop=14), Range(source='b', start=0, stop=2)]
    """
    at = 0
    for source, first, last in ranges:
        low, high = max(start - at, 0), min(stop - at, last - first)
        if low < high:
            yield Range(source, first + low, first + high)
        at += last - first
