"""Train what is in memory, and give the module its best parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .recipes import WEIGHTS, chosen_backend, default_run, record, watched

if TYPE_CHECKING:
    from ...trainers.runs.loop import TrainResult


def train_live(
    given: Sequence[Any], target: Path | None, backend: str | None, *, resume: bool = False
) -> TrainResult:
    """Train what is in memory and give the module the best parameters, unless adapters were trained.

    An objective that was given as an instance gets the best of its own.

    Args:
        given: a torch module, its objective, data and settings; see ``trainers.live.live``.
        target: the run's folder; a free name like ``run`` where none is given.
        backend: ``mlx`` or ``torch``; ``None`` for that of a run that goes on, and MLX for another.
        resume: go on where the run in TARGET stopped, with the same module, objective and data.
    """
    from ...trainers.live import live
    from ...trainers.objectives.own import FILE
    from ...trainers.ranks import ranks_of
    from ...trainers.runs.loop import train as run
    from ...trainers.tasks import build_task

    backend = chosen_backend(backend, target, resume=resume)
    module, ranks = given[0], ranks_of(backend)
    with ranks.together():
        config, there = live(*given)
        target = ranks.first(lambda: target or default_run(resume=resume))
        task = build_task(config, live=there)
        with nullcontext(None) if ranks.rank else watched(target, config) as progress:
            watchers: Any = {"progress": progress, "task": task}
            result = run(config, target, backend=backend, resume=resume, **watchers)
        if weights := ranks.first(partial(_weights, target / WEIGHTS)):
            module.load_state_dict(weights)
        if (own := ranks.first(partial(_weights, target / FILE))) and not isinstance(
            given[1], type
        ):
            given[1].load_state_dict(own, strict=False)
        ranks.write(partial(record, target))
    return result


def _weights(path: Path) -> dict[str, Any]:
    """Return the weights that a run has left in PATH, if it has."""
    from safetensors.torch import load_file

    return load_file(path) if path.is_file() else {}
