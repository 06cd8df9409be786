"""Hold a map that was learned from a few experts against a model with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...checkpoints.base import Header
from ..binding.plan import Plan, Step
from ..binding.weightmap import WeightMap
from ..notation.axes import shape
from ..notation.definitions import values
from ..notation.rules import Pairing
from ..programs.computed import Computed
from .rules.drafting import FAMILY
from .trace.reduction import Mixture, Reduced

Layout = dict[str, Header]


def layout_of_all(weight_map: WeightMap, mixture: Mixture, few: Reduced) -> Layout:
    """Return what WEIGHT_MAP, learned from FEW experts, makes of all tensors of MIXTURE.

    Where every expert is in a family whose index the map takes as far as it goes, and nothing else
    in the map depends on their number, the plan for a few tells it: the tensors differ in that index
    only. Otherwise all are paired, which takes longer.

    Raises:
        MismatchError: the map does not fit them.
    """
    plan = weight_map.bind(few.headers, config=few.config)
    if not speaks_for_all(weight_map, plan, mixture, few):
        return weight_map.bind(mixture.headers, config=mixture.config).layout
    layout = dict(plan.layout)
    for step in plan.steps:
        if FAMILY in step.rule.indices:
            layout |= _with_all(step, plan, mixture.size)
    return layout


def speaks_for_all(weight_map: WeightMap, plan: Plan, mixture: Mixture, few: Reduced) -> bool:
    """Return whether PLAN, of a FEW experts, tells what the map does to all of them."""
    experts = {name for members in mixture.families.values() for name in members.values()}
    for step in plan.steps:
        taken = [name in experts for name in step.source_names]
        family = FAMILY in step.rule.indices
        if any(taken) != family or any(taken) != all(taken):
            return False
    return all(
        _same_sizes(weight_map, rule, mixture, few)
        for rule in weight_map.rules
        if isinstance(rule, Pairing)
    )


def _same_sizes(weight_map: WeightMap, rule: Pairing, mixture: Mixture, few: Reduced) -> bool:
    """Return whether the definitions of RULE say the same of both, but for the count of experts."""
    definitions = weight_map.definitions(rule)
    here, there = (dict(values(definitions, c).known) for c in (few.config, mixture.config))
    count = there.pop(FAMILY, mixture.size)
    here.pop(FAMILY, None)
    return (count == mixture.size or FAMILY not in rule.indices) and here == there


def _with_all(step: Step, plan: Plan, size: int) -> Iterator[tuple[str, Header]]:
    """Yield the targets of STEP as they are with SIZE experts."""
    for bound in step.targets:
        for name in bound.names:
            header = plan.layout[name]
            made = (size, *header.shape[1:])
            if not isinstance(step.rule, Computed):
                made = shape(bound.term.axes or (), {**step.sizes, FAMILY: size})
            yield name, header._replace(shape=made)


def is_made(layout: Mapping[str, Header], parameters: Mapping[str, Any]) -> bool:
    """Return whether LAYOUT has the names and the shapes of PARAMETERS."""
    return {n: h.shape for n, h in layout.items()} == {n: h.shape for n, h in parameters.items()}
