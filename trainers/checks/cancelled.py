"""Parameters that batch statistics cancel: their gradient is rounding alone, and evaluation depends on them.

A number added to every example before a BatchNorm is taken out again with the mean of the batch, so the
loss of train mode does not depend on it. Optimizers that divide by the size of gradients move it by whole
updates all the same, in a direction that rounding draws. Evaluation takes out an average of earlier means,
which is behind by some updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...converters.captures.modes import in_mode
from ...converters.common.memory import pass_on_shortage
from ..config import TrainConfig
from ..objectives.own import NAMED, PREFIX
from ..steps.base import Arrays, example_of
from ..tasks import Task

ROUNDING: Final = 1e-10  # of the largest gradient, in float64
SHOWN: Final = 3
ALIKE: Final = frozenset({"sgd"})  # optimizers whose updates are as small as gradients


def cancelled(task: Task, config: TrainConfig) -> list[str]:
    """Return the names of the parameters of TASK that train mode cancels and eval mode does not.

    Looked at are the gradients of a few examples in float64; of a module that cannot compute in it nothing is known.
    """
    from ..steps.modes import trains

    normed = any(getattr(part, "track_running_stats", False) for part in task.module.modules())
    if not normed or config.optimizer.name in ALIKE or not trains(task.module, config.mode):
        return []
    inputs = example_of(task.splits["train"]).inputs
    try:
        trained, evaluated = (_sizes(task, inputs, training=mode) for mode in (True, False))
    except Exception as error:  # it may compute in float32 alone
        pass_on_shortage(error)
        return []
    return [it for it in trained if _vanishes(it, trained) and not _vanishes(it, evaluated)]


def cancelled_note(names: Sequence[str], config: TrainConfig) -> list[str]:
    """Return what a user should know of the parameters NAMES of a run of CONFIG, which batch statistics cancel."""
    if not names:
        return []
    called = [it.removeprefix(PREFIX) if it.startswith(PREFIX) else NAMED + it for it in names]
    more = f" and {len(called) - SHOWN} more" if called[SHOWN:] else ""
    cure = f"--set freeze=[{','.join([*config.freeze, *called])}]" if not more else "freeze them"
    text = (
        f"{', '.join(called[:SHOWN])}{more}: batch statistics take out what it adds, so that its gradient is"
        f" rounding alone, by which {config.optimizer.name} moves it all the same; figures of validation differ"
        f" by that between backends and machines; {cure} keeps it, or bias=False leaves it out"
    )
    return [text]


def _vanishes(name: str, sizes: dict[str, float]) -> bool:
    return sizes[name] <= ROUNDING * max(sizes.values())


def _sizes(task: Task, inputs: Arrays, *, training: bool) -> dict[str, float]:
    """Return the largest absolute gradient of every parameter that trains, in float64."""
    import torch

    from ..steps.torch_adapters import modules_of

    loss = modules_of(task)[0].double()
    given = {name: torch.tensor(it) for name, it in inputs.items()}
    wide = {name: it.double() if it.is_floating_point() else it for name, it in given.items()}
    with in_mode(loss, training), torch.random.fork_rng(devices=[]):
        loss(**wide).backward()
    found = {name: it.grad for name, it in loss.named_parameters() if it.grad is not None}
    return {name: float(it.abs().max()) for name, it in found.items()}
