"""A checkpoint as it would be after a map, nothing written: each tensor is made when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock

import numpy as np

from ...checkpoints.base import CHUNK, Checkpoint, Header
from ...checkpoints.formats.ranges import gather
from ...common.dtypes import NUMPY
from ...values import Array
from ..binding.actions import dense
from ..binding.plan import Plan, Step
from .copies import Range
from .execution import byte_ranges


class Mapped:
    """The targets of a plan, read through it.

    A tensor that is made of byte ranges of its sources is read from these. Of another one the whole
    step is computed; what it makes beside the tensor asked for is kept until another step is, so
    reading a layout in its order computes nothing twice.

    Attributes:
        path: of the source.
        headers: of the targets.
        metadata: of the source.
        files: of the source.
        ignored: of the source.
    """

    path: Path
    headers: Mapping[str, Header]
    metadata: Mapping[str, str]
    files: tuple[Path, ...]
    ignored: tuple[Path, ...]

    def __init__(self, plan: Plan, checkpoint: Checkpoint) -> None:
        """Show what PLAN, which merges no updates, makes of CHECKPOINT.

        Raises:
            ValueError: the plan merges updates.
        """
        if plan.updates:
            raise ValueError("a plan that merges updates must be executed, not viewed")
        self._plan, self._own = plan, checkpoint
        self.path, self.files, self.ignored = checkpoint.path, checkpoint.files, checkpoint.ignored
        self.metadata, self.headers = checkpoint.metadata, plan.layout
        self._steps = {name: step for step in plan.steps for name in step.target_names}
        self._beside: dict[str, Array] = {}
        self._lock = Lock()

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        step, head = self._steps[name], self.headers[name]
        if not step.copies:
            return self._made(name, step)
        if step.rule.keeps_layout:
            return self._own.read(step.source_names[0])
        return gather(self.stream(name), head.nbytes).view(NUMPY[head.dtype]).reshape(head.shape)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        step = self._steps[name]
        stop = self.headers[name].nbytes if stop is None else stop
        if step.copies:
            for source, first, last in clipped(byte_ranges(step, self._plan)[name], start, stop):
                yield from self._own.stream(source, first, last)
            return
        array = np.ascontiguousarray(self.read(name))
        data = array.reshape(-1).view(np.uint8).data
        yield from (data[at : min(at + CHUNK, stop)] for at in range(start, stop, CHUNK))

    def _made(self, name: str, step: Step) -> Array:
        """Return tensor NAME, computed by STEP or beside the one before."""
        with self._lock:
            if name not in self._beside:
                sources = {source: self._own.read(source) for source in step.source_names}
                self._beside = dict(dense(step, sources))
            return np.array(self._beside.pop(name), order="C")


def clipped(ranges: list[Range], start: int, stop: int) -> Iterator[Range]:
    """Yield those parts of RANGES, laid end to end, that lie from START to STOP.

    >>> list(clipped([Range("a", 10, 14), Range("b", 0, 4)], 2, 6))
    [Range(source='a', start=12, stop=14), Range(source='b', start=0, stop=2)]
    """
    at = 0
    for source, first, last in ranges:
        low, high = max(start - at, 0), min(stop - at, last - first)
        if low < high:
            yield Range(source, first + low, first + high)
        at += last - first
