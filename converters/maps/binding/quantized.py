"""The action of a map on quantized weights: their parts are moved as the weights would be.

A part lies along the rows of its weight exactly; along the columns it has one word for 32 bits of
codes, or one scale for a group. So a step moves each part as it moves the weight, with other sizes
of the axes within the columns; codes and scales stay as they are, byte for byte. That needs columns
that stay columns: what leads elsewhere is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ....errors import MismatchError
from ...checkpoints.base import Header
from ...common.dtypes import CODE
from ...quantization import Blocks
from ...quantization.mlx import part_name
from ...quantization.scheme import Scheme
from ...values import Array
from ..execution.copies import copies
from ..notation.axes import Atom, Axis, Sum, names, shape
from ..notation.rules import first_line
from ..programs.computed import Computed
from .actions import dense
from .plan import Bound, Dropped, Plan, Step

COLUMNS: Final = Atom(" columns")  # no axis of a map can be called so
PER_EXPERT: Final = "global_scale"
PARTS: Final = ("weight", "scales", "biases", PER_EXPERT)
DENSE: Final = "make the weights dense with --dequantize"
Headers = Mapping[str, Header]


class QuantizedPlan(NamedTuple):
    """A plan for the parts of quantized weights.

    Attributes:
        plan: from the tensors as they are stored to the tensors as they will be.
        schemes: of the targets that are quantized, by name.
    """

    plan: Plan
    schemes: Mapping[str, Scheme]


class CannotMoveError(MismatchError):
    """Weights whose codes a map does not move.

    Attributes:
        names: those that nothing but their layout hinders: dense they could be moved beside the others.
        changed: whether a value of others would have to change.
    """

    def __init__(self, problems: Sequence[str], names: Collection[str], *, changed: bool) -> None:
        super().__init__("quantized weights cannot be moved as they are", problems)
        self.names, self.changed = frozenset(names), changed


class Unmoved(Exception):  # noqa: N818  (no error: a reason, gathered with others)
    """Why a step cannot move the parts of its weights as they are."""


class Changed(Unmoved):
    """The same, where values would have to change."""


def quantized_plan(plan: Plan, stored: Headers, schemes: Mapping[str, Scheme]) -> QuantizedPlan:
    """Return PLAN, which is for dense weights, for weights that are quantized by SCHEMES.

    Args:
        plan: bound to the headers that the weights would have were they dense.
        stored: the headers of the checkpoint as it is: ``x.weight``, ``x.scales`` and so on.
        schemes: by name of the weight.

    Raises:
        CannotMoveError: a step would change codes, or part a group; carries all of them.
    """
    steps: list[Step] = []
    moved: dict[str, Scheme] = {}
    problems: dict[str, tuple[Step, Unmoved]] = {}
    for step in plan.steps:
        try:
            scheme = _scheme(step, schemes)
            steps += _steps(step, stored, scheme) if scheme else [step]
            moved |= dict.fromkeys(step.target_names, scheme) if scheme else {}
        except Unmoved as why:
            problems[f"`{first_line(step.rule)}` on {_named(step)}: {why}"] = step, why
    if problems:
        names = [name for step, why in problems.values() for name in step.source_names]
        changed = any(isinstance(why, Changed) for _, why in problems.values())
        quantized = [name for name in names if name in schemes]
        raise CannotMoveError(list(problems), quantized, changed=changed)
    layout: dict[str, Header] = {}
    for step in steps:
        layout |= _targets(step, plan, stored)
    dropped = tuple(each for item in plan.dropped for each in _dropped(item, stored, schemes))
    return QuantizedPlan(
        replace(plan, steps=tuple(steps), headers=stored, layout=layout, dropped=dropped), moved
    )


def move_blocks(plan: Plan, blocks: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """Return the targets that PLAN, bound for dense weights, makes of quantized BLOCKS, in memory.

    Raises:
        CannotMoveError: a step would change codes, or part a group; carries all of them.
    """
    arrays = {
        part_name(name, part): array
        for name, block in blocks.items()
        for part, array in block.parts.items()
    }
    stored = {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}
    moved = quantized_plan(plan, stored, {name: block.scheme for name, block in blocks.items()})
    made: dict[str, Array] = {}
    for step in moved.plan.steps:
        made |= dense(step, {name: arrays[name] for name in step.source_names})
    return {
        name: Blocks({p: made[full] for p in PARTS if (full := part_name(name, p)) in made}, scheme)
        for name, scheme in moved.schemes.items()
    }


def _named(step: Step) -> str:
    first, *more = step.source_names
    return f"{first} and {len(more)} more" if more else first


def _scheme(step: Step, schemes: Mapping[str, Scheme]) -> Scheme | None:
    """Return the scheme of the sources of STEP, ``None`` if they are dense."""
    found = {schemes.get(name) for name in step.source_names}
    if len(found) > 1:
        kinds = " and ".join(sorted(str(each) if each else "not quantized" for each in found))
        raise Unmoved(f"what becomes one tensor must be quantized alike; here are {kinds}; {DENSE}")
    [scheme] = found
    if scheme and isinstance(step.rule, Computed):
        raise Changed(f"a program computes with dense weights; {DENSE}")
    if scheme and step.rule.changes:
        raise Changed(f"values of codes cannot be changed; {DENSE}")
    return scheme


def _steps(step: Step, stored: Headers, scheme: Scheme) -> list[Step]:
    """Return what STEP does to each part of its weights."""
    return [_part(step, part, stored, scheme) for part in _parts(step, stored)]


def _parts(step: Step, stored: Headers) -> list[str]:
    """Return which parts the weights of STEP have."""
    found = [part for part in PARTS if part_name(step.source_names[0], part) in stored]
    if PER_EXPERT in found and step.rule.left[0].axes is not None:
        raise Unmoved(f"experts with a scale of their own keep their layout; {DENSE}")
    return found


def _part(step: Step, part: str, stored: Headers, scheme: Scheme) -> Step:
    """Return what STEP does to PART of its weights."""
    sources, targets = (
        tuple(
            bound._replace(names=tuple(part_name(name, part) for name in bound.names))
            for bound in bounds
        )
        for bounds in (step.sources, step.targets)
    )
    _require_alike(sources, stored)
    named = step._replace(sources=sources, targets=targets)
    if step.rule.left[0].axes is None:
        return named
    cut = _cut_whole(named, stored) or _cut_inside(named, *_ratio(part, scheme))
    before, after = (
        [(bound.axes, bound.names) for bound in bounds] for bounds in (cut.sources, cut.targets)
    )
    copied = step.rule.keeps_layout or copies(before, after, cut.sizes) is not None
    return cut._replace(copies=copied)


def _require_alike(bounds: Sequence[Bound], stored: Headers) -> None:
    dtypes = {stored[name].dtype for bound in bounds for name in bound.names}
    if len(dtypes) > 1:
        raise Unmoved(f"what becomes one tensor must have scales in one dtype; here are {dtypes}")


def _ratio(part: str, scheme: Scheme) -> tuple[int, int]:
    """Return how many numbers PART has for how many columns."""
    return (scheme.bits, 32) if part == "weight" else (1, scheme.group_size)


def _cut_whole(step: Step, stored: Headers) -> Step | None:
    """Return STEP with columns that are one axis, if they are the same axes in every tensor."""
    bounds = (*step.sources, *step.targets)
    last = {bound.axes[-1] for bound in bounds}
    inside = set(names(tuple(last)))
    outside = {name for bound in bounds for name in names(bound.axes[:-1])}
    if len(last) > 1 or inside & outside:
        return None
    sources, targets = (
        tuple(bound._replace(axes=(*bound.axes[:-1], COLUMNS)) for bound in it)
        for it in (step.sources, step.targets)
    )
    width = stored[step.source_names[0]].shape[-1]
    sizes = {**step.sizes, COLUMNS.name: width}
    return step._replace(sources=sources, targets=targets, sizes=sizes)


def _cut_inside(step: Step, count: int, columns: int) -> Step:
    """Return STEP with COUNT numbers instead of COLUMNS, along the innermost axes of all tensors."""
    bounds = (*step.sources, *step.targets)
    inner = {name for bound in bounds for name in _innermost(bound.axes[-1])}
    for bound in bounds:
        outer = set(names(bound.axes)) - set(_innermost(bound.axes[-1]))
        if outer & inner:
            raise Unmoved(f"columns do not stay columns, and groups lie along them; {DENSE}")
    for name in sorted(inner):
        if name.isdigit() or step.sizes[name] % columns:
            raise Unmoved(f"the axis {name} parts groups of {columns} columns; {DENSE}")
    cut = {name: step.sizes[name] * count // columns for name in inner}
    return step._replace(sizes={**step.sizes, **cut})


def _innermost(axis: Axis) -> list[str]:
    """Return the atoms along which neighbours in storage are neighbours in AXIS."""
    if isinstance(axis, Atom):
        return [axis.name]
    if isinstance(axis, Sum):
        return [name for part in axis.parts for name in _innermost(part)]
    return _innermost(axis.factors[-1]) if axis.factors else []


def _targets(step: Step, plan: Plan, stored: Headers) -> dict[str, Header]:
    """Return the headers of the targets of STEP."""
    found: dict[str, Header] = {}
    for bound in step.targets:
        for name in bound.names:
            found[name] = _target(step, bound, name, plan, stored)
    return found


def _target(step: Step, bound: Bound, name: str, plan: Plan, stored: Headers) -> Header:
    source = stored[step.source_names[0]]
    if name in plan.layout and plan.headers.get(step.source_names[0]) == source:
        return plan.layout[name]  # dense
    if step.rule.left[0].axes is None:
        return source
    own = bound.axes[len(bound.family) :]
    return Header(source.dtype, shape(own, step.sizes))


def _dropped(item: Dropped, stored: Headers, schemes: Mapping[str, Scheme]) -> Iterator[Dropped]:
    """Yield ITEM, or one for each part if it is a quantized weight."""
    if item.name not in schemes:
        yield item
        return
    for part in PARTS:
        if part_name(item.name, part) in stored:
            of = part_name(item.of, part) if item.of else ""
            yield item._replace(name=part_name(item.name, part), of=of)
