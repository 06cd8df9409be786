"""What a map promises of a conversion's result, for the check to hold against the values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..converters.maps import Plan, Step
from ..converters.maps.notation.axes import Atom, Axes
from ..converters.maps.notation.rules import Cast
from ..converters.maps.programs.computed import Computed
from ..converters.maps.programs.preimages import leads_as_near
from ..converters.models import Model
from .directions import map_of

if TYPE_CHECKING:
    from ..parity.weights.expectations import Expectation


def promises_of(plan: Plan) -> dict[str, Expectation]:
    """Return what PLAN says of each target: its sources, a permutation, whether values change."""
    from ..parity.weights.expectations import Expectation

    found: dict[str, Expectation] = {}
    for step in plan.steps:
        single = len(step.source_names) == len(step.target_names) == 1 and _plain(step)
        axes = _permutation(step) if single else None
        computed = isinstance(step.rule, Computed)
        ordered = len(step.sources) == 1 or all(len(it.names) == 1 for it in step.sources)
        expectation = Expectation(step.source_names, axes, _changes(step), computed, ordered)
        found |= dict.fromkeys(step.target_names, expectation)
    return found


def _changes(step: Step) -> bool:
    terms = (*step.rule.left, *step.rule.right)
    return any(not isinstance(change, Cast) for term in terms for change in term.changes)


def _axes(step: Step) -> tuple[Axes | None, Axes | None]:
    return step.rule.left[0].axes, step.rule.right[0].axes


def _plain(step: Step) -> bool:
    sides = [side for side in _axes(step) if side is not None]
    return all(isinstance(axis, Atom) for side in sides for axis in side)


def _permutation(step: Step) -> tuple[int, ...] | None:
    left, right = _axes(step)
    if left is None or right is None or left == right:
        return None
    return tuple(left.index(axis) for axis in right)


def promised(reference: Model, candidate: Model) -> dict[str, Expectation]:
    """Return what CANDIDATE's weights should be, by REFERENCE's names; empty where no map says.

    Models in one framework promise every name to be itself. Between torch and MLX the map of either
    side says it; whether the map is right is what the check finds out by values.

    Raises:
        MismatchError: the reference does not fit its own map.
    """
    from ..parity.weights.expectations import Expectation

    if "mlprogram" in (reference.framework, candidate.framework) or reference.path is None:
        return {}
    if candidate.path is None:
        return {}
    headers = reference.checkpoint.headers
    if reference.framework == candidate.framework:
        return {
            name: Expectation((name,)) for name in candidate.checkpoint.headers if name in headers
        }
    table = map_of(reference) or map_of(candidate)
    if table is None:
        return {}
    directed = table if reference.framework == "torch" else table.inverse()
    plan = directed.bind(headers, config=reference.config, sizes=reference.sizes)
    return promises_of(plan) | held(plan, reference, candidate)


def held(plan: Plan, reference: Model, candidate: Model) -> dict[str, Expectation]:
    """Return the promises of PLAN that can be held against the values by running their programs.

    With an adapter the weights are not what a program was run on.
    """
    found = promises_of(plan)
    if reference.adapter or candidate.adapter:
        return {}
    there = candidate.checkpoint.headers
    return {
        name: found[name]._replace(holds=partial(agrees, step, reference, candidate))
        for step in plan.steps
        if isinstance(step.rule, Computed) and step.rule.undoable
        for name in step.target_names
        if name in there
    }


def agrees(step: Step, reference: Model, candidate: Model) -> bool:
    """Say whether the program of STEP, which can be undone, leads from the one model to the other."""
    assert isinstance(step.rule, Computed)  # noqa: S101  (only these have programs)
    [source], [target] = step.source_names, step.target_names
    mine, theirs = reference.checkpoint.read(source), candidate.checkpoint.read(target)
    if step.rule.forward:
        return leads_as_near(step.rule.program, mine, theirs, back=False)
    return leads_as_near(step.rule.program, theirs, mine, back=True)
