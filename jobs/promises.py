"""What a map promises of a conversion's result, for the check to hold against the values."""

from __future__ import annotations

from ..converters.maps import Plan, Step
from ..converters.maps.axes import Atom, Axes
from ..converters.models import Model
from .opening import map_of

Promise = tuple[str, tuple[int, ...] | None]


def promises_of(plan: Plan) -> dict[str, Promise]:
    """Return target -> (source, permutation of the source's axes), for one-to-one steps.

    Steps that join, cut or merge axes promise nothing here: no single source explains their targets.
    """
    found: dict[str, Promise] = {}
    for step in plan.steps:
        if len(step.source_names) == len(step.target_names) == 1 and _plain(step):
            found[step.target_names[0]] = (step.source_names[0], _permutation(step))
    return found


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
    if "mlprogram" in (reference.framework, candidate.framework) or reference.path is None:
        return {}
    if candidate.path is None:
        return {}
    headers = reference.checkpoint.headers
    if reference.framework == candidate.framework:
        return {name: (name, None) for name in candidate.checkpoint.headers if name in headers}
    table = map_of(reference) or map_of(candidate)
    if table is None:
        return {}
    directed = table if reference.framework == "torch" else table.inverse()
    return promises_of(directed.bind(headers, config=reference.config, sizes=reference.sizes))
