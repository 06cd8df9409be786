"""Train what is in memory, and give the module its best parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...converters.common.system import writing
from ...converters.results.records import write_record
from .recipes import WEIGHTS, default_run, watched

if TYPE_CHECKING:
    from ...trainers.runs.loop import TrainResult


def train_live(
    given: Sequence[Any], target: Path | None, backend: str, *, resume: bool = False
) -> TrainResult:
    """Train what is in memory and give the module the best parameters, unless adapters were trained.

    Args:
        given: a torch module, its objective, data and settings; see ``trainers.live.live``.
        target: the run's folder; a free name like ``run`` where none is given.
        backend: ``mlx`` or ``torch``.
        resume: go on where the run in TARGET stopped, with the same module, objective and data.
    """
    from ...trainers.live import live
    from ...trainers.runs.loop import train as run
    from ...trainers.tasks import build_task

    module = given[0]
    config, there = live(*given)
    target = target or default_run(resume=resume)
    task = build_task(config, live=there)
    with watched(target, config) as progress:
        result = run(config, target, backend=backend, resume=resume, task=task, progress=progress)
    weights = target / WEIGHTS
    if weights.is_file():
        from safetensors.torch import load_file

        module.load_state_dict(load_file(weights))
    with writing(target):
        write_record(target, "run")
    return result
