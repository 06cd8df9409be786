"""What a map promises of a conversion's result, for the check to hold against the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..converters.maps import Plan, Step
from ..converters.maps.axes import Atom, Axes
from ..converters.maps.computed import Computed
from ..converters.maps.rules import Cast
from ..converters.models import Model
from .opening import map_of

if TYPE_CHECKING:
    from ..parity.promises import Promise


def promises_of(plan: Plan) -> dict[str, Promise]:
    """Return what PLAN says of each target: its sources, a permutation, whether values change."""
    from ..parity.promises import Promise

    found: dict[str, Promise] = {}
    for step in plan.steps:
        single = len(step.source_names) == len(step.target_names) == 1 and _plain(step)
        axes = _permutation(step) if single else None
        computed = isinstance(step.rule, Computed)
        ordered = len(step.sources) == 1 or all(len(it.names) == 1 for it in step.sources)
        promise = Promise(step.source_names, axes, _changes(step), computed, ordered)
        found |= dict.fromkeys(step.target_names, promise)
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


def promised(reference: Model, candidate: Model) -> dict[str, Promise]:
    """Return what CANDIDATE's weights should be, by REFERENCE's names; empty where no map says.

    Models in one framework promise every name to be itself. Between torch and MLX the map of either
    side says it; whether the map is right is what the check finds out by values.

    Raises:
        MismatchError: the reference does not fit its own map.
    """
    from ..parity.promises import Promise

    if "mlprogram" in (reference.framework, candidate.framework) or reference.path is None:
        return {}
    if candidate.path is None:
        return {}
    headers = reference.checkpoint.headers
    if reference.framework == candidate.framework:
        return {name: Promise((name,)) for name in candidate.checkpoint.headers if name in headers}
    table = map_of(reference) or map_of(candidate)
    if table is None:
        return {}
    directed = table if reference.framework == "torch" else table.inverse()
    return promises_of(directed.bind(headers, config=reference.config, sizes=reference.sizes))
