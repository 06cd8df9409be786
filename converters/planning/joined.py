"""A checkpoint together with what is restored beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..checkpoints import Checkpoint
from ..checkpoints.arrays import FileArrays
from ..checkpoints.derived import Joined
from ..maps import Dropped, Plan, Step
from ..maps.binding.plan import Bound
from ..maps.notation.names import Name
from ..maps.notation.rules import Pairing, Term
from ..models import Model
from ..models.model import TorchSide
from .sidecar import Restored

MARK: Final = "original:"  # before the names of tensors that another checkpoint gives


def with_restored(model: Model, restored: Restored) -> Model:
    """Return MODEL with what MLX's class drops, and is RESTORED, beside its tensors in PyTorch."""
    beside = {name: restored.taken[name] for name in restored.dropped if name in restored.taken}
    side = model.torch_side
    if side is None or not beside:
        return model

    def both(model: Model) -> TorchSide:
        own = side(model)
        return own._replace(arrays=FileArrays(Joined(own.arrays.checkpoint, beside)))

    return replace(model, torch_side=both)


def in_order(plan: Plan, names: Iterable[str]) -> Plan:
    """Return PLAN with a layout in the order of NAMES; others come last.

    A checkpoint that goes back unchanged is then the same file as before.
    """
    first = {name: plan.layout[name] for name in names if name in plan.layout}
    return replace(plan, layout=first | plan.layout)


def join(plan: Plan, own: Checkpoint, restored: Restored) -> tuple[Plan, Checkpoint]:
    """Return PLAN with what is RESTORED copied as it is, and the checkpoint it then reads."""
    taken = restored.taken
    marked = {f"{MARK}{name}": source for name, source in taken.items()}
    both = Joined(own, marked)
    kept = [step for step in plan.steps if not taken.keys() >= set(step.target_names)]
    copied = [copy_step(key, name) for key, name in zip(marked, taken, strict=True)]
    again = list(second_names((*kept, *copied), restored.aliases))
    layout = plan.layout | {name: both.headers[f"{MARK}{name}"] for name in taken}
    layout |= {step.identity: layout[restored.aliases[step.identity]] for step in again}
    dropped = [item for item in plan.dropped if item.policy != "needed"]
    dropped += [Dropped(name, "left out") for name in restored.left_out]
    plan = replace(plan, steps=(*kept, *copied, *again), layout=layout, dropped=tuple(dropped))
    return replace(plan, headers=both.headers), both


def second_names(steps: Iterable[Step], aliases: Mapping[str, str]) -> Iterator[Step]:
    """Yield steps that make the ALIASES as STEPS make the tensors that they equal.

    A tensor that is made together with others, which no tied one is, gets no second name.
    """
    alone = {step.target_names[0]: step for step in steps if len(step.target_names) == 1}
    for alias, name in aliases.items():
        if name in alone:
            step = alone[name]
            targets = (step.targets[0]._replace(names=(alias,)),)
            yield step._replace(targets=targets, identity=alias)


def copy_step(source: str, target: str) -> Step:
    """Return the step that copies SOURCE to TARGET byte for byte."""
    old, new = Term(Name((source,))), Term(Name((target,)))
    bounds = (Bound(old, (source,), (), ()),), (Bound(new, (target,), (), ()),)
    return Step(Pairing((old,), (new,)), *bounds, {}, {}, target, copies=True, exact=True)
