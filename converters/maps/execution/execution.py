"""Pass 2: make the targets of a plan, in memory or from disk to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import NamedTuple, Protocol

import xxhash

from ....errors import MismatchError
from ...adapters import Survival, merge
from ...adapters.merging.checkpoint import Merging
from ...checkpoints.base import Checkpoint
from ...checkpoints.workers import Workers
from ...common.dtypes import NUMPY
from ...values import Array, Dense, LowRank, Value
from ..binding.actions import dense, transform, undo
from ..binding.instances import nearest
from ..binding.plan import Dropped, Plan, Step
from ..programs.computed import Computed
from .copies import Range, copies
from .slabs import slabs

Progress = Callable[[int], None]


class Execution(NamedTuple):
    """What was written.

    Attributes:
        hashes: ``xxh3:<hex>`` of every target tensor.
        survival: how much of each merged update is in the result, by source name.
        missed: how many numbers of a target that a program was undone for do not lead to the very
            bits of the source, because no number does.
    """

    hashes: dict[str, str]
    survival: dict[str, Survival]
    missed: dict[str, int]


class TargetWriter(Protocol):
    """What pass 2 needs of a checkpoint writer."""

    finished: frozenset[str]

    def write(self, name: str, data: Array | Iterable[memoryview]) -> str:
        """Write a tensor; return its hash."""
        ...

    def close(self) -> dict[str, str]:
        """Finish the files; return all hashes."""
        ...


def apply(plan: Plan, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the targets that PLAN makes of VALUES, in memory.

    VALUES may be a part of the checkpoint, such as the updates of an adapter; a step of which no
    tensor is there is left out.

    Raises:
        MismatchError: a value is unknown to the plan or has another shape, or a step lacks some of
            its tensors.
        UnsupportedError: a step has no action on this kind of value.
    """
    _check_values(plan, values)
    targets: dict[str, Value] = {}
    for step in plan.steps:
        found = {name: values[name] for name in step.source_names if name in values}
        if found:
            targets |= transform(step, {name: _updated(plan, name, v) for name, v in found.items()})
    return targets


def _updated(plan: Plan, name: str, value: Value) -> Value:
    if name not in plan.updates or not isinstance(value, Dense):
        return value
    return Dense(merge(value.array, plan.updates[name])[0])


def _check_values(plan: Plan, values: Mapping[str, Value]) -> None:
    problems = [
        *(problem for name in values for problem in _shape_problem(plan, name, values[name])),
        *(problem for item in plan.dropped for problem in _drop_problem(item, values)),
        *(problem for step in plan.steps for problem in _incomplete(step, values)),
    ]
    if problems:
        raise MismatchError("the values do not fit the plan", sorted(problems))


def _shape_problem(plan: Plan, name: str, value: Value) -> Iterator[str]:
    header = plan.headers.get(name)
    if header is None:
        yield f"{name} is not in the plan{nearest(name, plan.headers)}"
    elif header.shape != tuple(value.shape):
        shapes = f"expected {list(header.shape)}, found {list(value.shape)}"
        yield f"{name} has another shape than in the plan: {shapes}"


def _drop_problem(item: Dropped, values: Mapping[str, Value]) -> Iterator[str]:
    value, other = values.get(item.name), values.get(item.of)
    if isinstance(value, LowRank):
        yield f"{item.name} has an update, which would be lost: {item.policy}"
    elif isinstance(value, Dense) and isinstance(other, Dense):
        same = value.array.tobytes() == other.array.tobytes()
        yield from [] if same else [f"{item.name} should equal {item.of}, but differs"]


def _incomplete(step: Step, values: Mapping[str, Value]) -> Iterator[str]:
    names = step.source_names
    if len(names) == 1:
        return
    there = [name for name in names if name in values]
    if there and not isinstance(values[there[0]], LowRank):
        yield from (f"{name} is missing beside {there[0]}" for name in names if name not in values)


def execute(
    plan: Plan, checkpoint: Checkpoint, writer: TargetWriter, progress: Progress | None = None
) -> Execution:
    """Write the targets of PLAN, copying byte ranges where the plan can, else step by step.

    Tensors that WRITER has finished already are passed over; an update merged into one is merged
    once more, only to measure it. Updates are merged as their weights are read, a block at a time.
    PROGRESS gets the bytes that were written or passed over.

    Raises:
        MismatchError: the checkpoint is not the one of the plan, or a tensor differs from the one
            it is tied to; nothing was written then.
    """
    mover = Mover(plan, checkpoint, writer, progress or (lambda _: None))
    mover.check()
    copied = [step for step in plan.steps if step.copies]
    made = [step for step in plan.steps if not step.copies]
    mover.workers.each(copied, mover.move, own=made)  # MLX, which programs use, is for one thread
    survival = mover.source.survival() if isinstance(mover.source, Merging) else {}
    return Execution(writer.close(), survival, mover.missed)


class Mover:
    """A plan under way."""

    def __init__(
        self, plan: Plan, checkpoint: Checkpoint, writer: TargetWriter, progress: Progress
    ) -> None:
        self.plan, self.checkpoint = plan, checkpoint
        self.source = checkpoint  # with the updates in it once it is known to be the right one
        self.writer, self._progress = writer, progress
        self.missed: dict[str, int] = {}
        self.workers = Workers()
        self._counting = Lock()

    def check(self) -> None:
        """Refuse a checkpoint that is not the plan's, or in which a tie does not hold."""
        headers = self.checkpoint.headers
        changed = [
            name for name, header in self.plan.headers.items() if headers.get(name) != header
        ]
        problems = [
            f"{name} is not as it was when the plan was made; start again"
            for name in sorted(changed)
        ]
        problems += [
            f"{name} should equal {of}, but differs; give the model a map without this tie"
            for name, _, of in ([] if problems else self.plan.ties)
            if self.digest(name) != self.digest(of)
        ]
        if problems:
            raise MismatchError(f"{self.checkpoint.path} does not fit the plan", problems)
        if self.plan.updates:
            self.source = Merging(self.checkpoint, self.plan.updates)

    def digest(self, name: str) -> bytes:
        """Return the hash of a source; comparing views of memory would take fifty times as long."""
        found = xxhash.xxh3_128()
        for view in self.checkpoint.stream(name):
            found.update(view)
        return found.digest()

    def move(self, step: Step) -> None:
        """Write the targets of STEP: copied, made slab by slab, or computed whole."""
        if step.copies:
            found = byte_ranges(step, self.plan)
            self.write({name: self.stream(ranges) for name, ranges in found.items()})
        elif parts := slabs(step, self.plan):
            self.write({name: parts.pieces(self.source, name) for name in step.target_names})
        elif undoes(step) or not self.writer.finished.issuperset(step.target_names):
            self.compute(step)
        for name in self.writer.finished.intersection(step.target_names):
            self.progress(self.plan.layout[name].nbytes)

    def progress(self, size: int) -> None:
        """Report SIZE bytes, one thread at a time."""
        with self._counting:
            self._progress(size)

    def compute(self, step: Step) -> None:
        """Make the targets of STEP in memory."""
        sources = {name: self.source.read(name) for name in step.source_names}
        arrays = self.undo(step, sources) if undoes(step) else dense(step, sources)
        for name, array in arrays.items():
            if name not in self.writer.finished:
                self.writer.write(name, array)
                self.progress(array.nbytes)

    def undo(self, step: Step, sources: Mapping[str, Array]) -> dict[str, Array]:
        """Return the target of STEP, which undoes a program; note what it could not undo."""
        [name] = step.target_names
        found = undo(step, sources)
        self.missed |= {name: found.missed} if found.missed else {}
        return {name: found.array}

    def stream(self, ranges: list[Range]) -> Iterator[memoryview]:
        """Yield the bytes of RANGES."""
        for source, start, stop in ranges:
            yield from self.source.stream(source, start, stop)

    def write(self, streams: Mapping[str, Iterator[memoryview]]) -> None:
        """Write the targets that are not finished, each from its stream of bytes."""
        for name, stream in streams.items():
            if name not in self.writer.finished:
                self.writer.write(name, self.counted(stream))

    def counted(self, stream: Iterator[memoryview]) -> Iterator[memoryview]:
        """Yield what STREAM yields and report its bytes; stop when another thread has failed."""
        for view in stream:
            self.workers.check()
            yield view
            self.progress(view.nbytes)


def undoes(step: Step) -> bool:
    """Return whether STEP seeks what a program made its source of."""
    return isinstance(step.rule, Computed) and not step.rule.forward


def byte_ranges(step: Step, plan: Plan) -> dict[str, list[Range]]:
    """Return the byte ranges of each target of a STEP that copies."""
    header = plan.headers[step.source_names[0]]
    if step.rule.keeps_layout or step.rule.left[0].axes is None:
        return {step.target_names[0]: [Range(step.source_names[0], 0, header.nbytes)]}
    sources, targets = (
        [(bound.axes, bound.names) for bound in bounds] for bounds in (step.sources, step.targets)
    )
    width = 1 if step.rule.reinterprets else NUMPY[header.dtype].itemsize
    found = copies(sources, targets, step.sizes)
    assert found is not None  # noqa: S101  (pass 1 found these ranges before)
    return {
        name: [Range(source, start * width, stop * width) for source, start, stop in ranges]
        for name, ranges in found.items()
    }
