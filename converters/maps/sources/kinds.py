"""Which parameters are matrices of layers, and of what kind, followed through a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...libraries.modules import CONV1D, EMBEDDING, EXPERTS, EXPERTS_IN_OUT, LINEAR, STACKED
from ..binding.plan import Bound, Plan, Step
from ..notation.axes import names

OUT, IN, LEAD = "out", "in", "lead"  # what an axis of a weight is to its layer
MATRIX: Final = 2  # axes
# By how many axes a weight has, and whether inputs come before outputs.
PLAIN: Final = {
    (MATRIX, False): LINEAR,
    (MATRIX, True): CONV1D,
    (STACKED, False): EXPERTS,
    (STACKED, True): EXPERTS_IN_OUT,
}


def kinds_through(plan: Plan, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return KINDS, those of PLAN's sources, under the names of its targets.

    A matrix that the plan turns is ``linear`` where it was ``conv1d``, and the other way round;
    experts taken one by one are ``linear``. What is no plain matrix any more has no kind.

    Args:
        plan: of the base model, from one side's names to the other's.
        kinds: by parameter name without ``.weight``, as in ``describe``.
    """
    found: dict[str, str] = {}
    for step in plan.steps:
        known = {name: kinds.get(name.removesuffix(".weight")) for name in step.source_names}
        if None in known.values():
            continue
        for bound in step.targets:
            kind = kind_of(bound, step, {name: str(kind) for name, kind in known.items()})
            if kind:
                found |= {name.removesuffix(".weight"): kind for name in bound.names}
    return found


def kind_of(target: Bound, step: Step, kinds: Mapping[str, str]) -> str:
    """Return the kind of TARGET, made by STEP of sources of KINDS; empty if it is no plain matrix."""
    if step.rule.left[0].axes is None:
        return next(iter(kinds.values()))
    known = roles(step, kinds)
    if len(target.axes) < MATRIX or {known.get(atom) for atom in names(target.axes[:-2])} - {LEAD}:
        return ""
    rows, columns = ({known.get(atom) for atom in names((axis,))} for axis in target.axes[-2:])
    turned = (rows, columns) == ({IN}, {OUT})
    if not turned and (rows, columns) != ({OUT}, {IN}):
        return ""
    if EMBEDDING in kinds.values():
        return "" if turned else EMBEDDING
    return PLAIN.get((len(target.axes) - len(target.family), turned), "")


def roles(step: Step, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return what each axis of the sources of STEP is to a layer; what is two things is left out."""
    found: dict[str, str] = {}
    for bound in step.sources:
        for name in bound.names:
            words = (IN, OUT) if kinds[name] in {CONV1D, EXPERTS_IN_OUT} else (OUT, IN)
            spread = [LEAD] * (len(bound.axes) - 2) + list(words)
            for axis, word in zip(bound.axes, spread, strict=True):
                for atom in names((axis,)):
                    if found.setdefault(atom, word) != word:
                        found[atom] = ""
    return found
