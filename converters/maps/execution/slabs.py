"""Steps larger than memory should be: done a few indices of their outermost axis at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...checkpoints.base import Checkpoint
from ...checkpoints.formats.ranges import gather
from ...common.dtypes import NUMPY
from ...values import Array
from ..binding.actions import dense
from ..binding.plan import Bound, Plan, Step
from ..notation.axes import Atom, Axes, Product
from ..programs.computed import Computed

SLAB: Final = 1 << 24  # bytes of sources and targets held at a time, one index at least


class Slabs(NamedTuple):
    """A step that can be done in slabs.

    Attributes:
        plan: where the step is from.
        step: the step.
        axis: the axis that is outermost in every tensor, or counts the tensors of a family.
        size: how many indices it has.
    """

    plan: Plan
    step: Step
    axis: str
    size: int

    def pieces(self, checkpoint: Checkpoint, name: str) -> Iterator[memoryview]:
        """Yield the bytes of the target NAME; a yielded view is valid until the next one."""
        bound = next(bound for bound in self.step.targets if name in bound.names)
        if bound.family:
            at = bound.names.index(name)
            yield self._slab(checkpoint, bound, at, at + 1)
            return
        for start in range(0, self.size, self._count()):
            yield self._slab(checkpoint, bound, start, min(start + self._count(), self.size))

    def _count(self) -> int:
        """Return how many indices are done at a time."""
        return max(1, SLAB * self.size // nbytes(self.step, self.plan))

    def _slab(self, checkpoint: Checkpoint, target: Bound, start: int, stop: int) -> memoryview:
        """Return the indices START to STOP of TARGET, or the tensors at them."""
        whole = isinstance(self.step.rule, Computed)  # a program makes all its targets at once
        sources, targets = (
            tuple(_cut(bound, start, stop) for bound in bounds)
            for bounds in (self.step.sources, self.step.targets if whole else (target,))
        )
        sizes = {**self.step.sizes, self.axis: stop - start}
        part = self.step._replace(sources=sources, targets=targets, sizes=sizes)
        arrays = {
            name: _read(checkpoint, name, None if bound.family else (start, stop, self.size))
            for bound in sources
            for name in bound.names
        }
        array = dense(part, arrays)[_cut(target, start, stop).names[0]]
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def slabs(step: Step, plan: Plan) -> Slabs | None:
    """Return how to do STEP in slabs; ``None`` if it is small, or has no axis to cut."""
    if nbytes(step, plan) <= SLAB:
        return None
    if isinstance(step.rule, Computed):
        family = step.sources[0].family
        return Slabs(plan, step, min(step.rule.indices), family[0]) if family else None
    axis = _outermost(step)
    return Slabs(plan, step, axis, step.sizes[axis]) if axis else None


def nbytes(step: Step, plan: Plan) -> int:
    """Return the bytes of all tensors of STEP."""
    sources = sum(plan.headers[name].nbytes for name in step.source_names)
    return sources + sum(plan.layout[name].nbytes for name in step.target_names)


def _outermost(step: Step) -> str | None:
    """Return the axis that is outermost in every tensor of STEP."""
    bounds = (*step.sources, *step.targets)
    if any(len(bound.family) > 1 for bound in bounds):
        return None
    heads = {_head(bound.axes) for bound in bounds}
    head = heads.pop()
    return head if not heads and head and not head.isdigit() else None


def _head(axes: Axes | None) -> str | None:
    """Return the first atom of AXES; ``None`` if it is not alone there, or the only axis."""
    if not axes or len(axes) < 2:
        return None
    first = axes[0]
    while isinstance(first, Product) and first.factors:
        first = first.factors[0]
    return first.name if isinstance(first, Atom) else None


def _cut(bound: Bound, start: int, stop: int) -> Bound:
    if not bound.family:
        return bound
    return bound._replace(names=bound.names[start:stop], family=(stop - start,))


def _read(checkpoint: Checkpoint, name: str, part: tuple[int, int, int] | None) -> Array:
    """Return tensor NAME, or of SIZE equal PARTS of its outermost axis those START to STOP."""
    if part is None:
        return checkpoint.read(name)
    start, stop, size = part
    header = checkpoint.headers[name]
    each = header.nbytes // size
    data = gather(checkpoint.stream(name, start * each, stop * each), (stop - start) * each)
    shape = (header.shape[0] // size * (stop - start), *header.shape[1:])
    return data.view(NUMPY[header.dtype]).reshape(shape)
