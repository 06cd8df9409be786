"""A training run from its configuration to an adapter on disk, resumable at any moment."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Final

from ..errors import BadInputError, MismatchError, TargetExistsError
from .config import TrainConfig, differences, dump_config, load_config
from .events import Notice, Progress, ignore
from .preflight import Preflight, check_gradients
from .result import TrainResult
from .run import Run
from .steps.base import Step
from .tasks import Task, build_task

CONFIG, PREFLIGHT, RESULT = "config.yaml", "preflight.json", "result.json"
BACKENDS: Final = ("mlx", "torch")

__all__ = ["BACKENDS", "TrainResult", "make_step", "preflight", "train"]


def train(
    config: TrainConfig | None,
    out: Path,
    *,
    backend: str = "mlx",
    progress: Progress = ignore,
    resume: bool = False,
    task: Task | None = None,
) -> TrainResult:
    """Train as CONFIG says and leave the run in OUT.

    OUT gets the adapter (or weights) of the best validation, the exact configuration, the journal,
    a plot and checkpoints. A run that was killed goes on with RESUME and ends as if it had not
    been (bit for bit in MLX on a CPU).

    Args:
        config: the run; ``None`` takes the one in OUT, to resume it.
        out: its folder; must not exist unless RESUME.
        backend: ``mlx`` or ``torch``.
        progress: told every event; it must not raise.
        resume: go on from the last checkpoint in OUT.
        task: a model and data in memory, in place of those that CONFIG names.

    Raises:
        TargetExistsError: OUT exists and RESUME was not given.
        PreflightError: the run would not train what it should; nothing was written.
        MismatchError: OUT holds a run of another configuration or other data.
        DivergedError: too many updates in a row were not finite.
        TrainingInterrupted: Ctrl-C; a checkpoint was written.
    """
    config = _admit(config, out, resume=resume)
    started = time.monotonic()
    task = task or build_task(config)
    step = _announced(make_step(backend, task, config), progress)
    if not resume:
        checked = _check(task, config, step).require()
        _found(out, config, checked)
    run = Run(config, task, step, out, progress)
    run.run()
    return _kept(run.finish(started), out)


def _announced(step: Step, progress: Progress) -> Step:
    """Return STEP after saying what is special about it."""
    if notice := getattr(step, "notice", None):
        progress(Notice(f"MLX runs uncompiled: {notice}"))
    return step


def _kept(result: TrainResult, out: Path) -> TrainResult:
    """Return RESULT after writing it to OUT."""
    (out / RESULT).write_text(json.dumps(result.document(), indent=1) + "\n", encoding="utf-8")
    return result


def preflight(config: TrainConfig, *, backend: str = "mlx") -> Preflight:
    """Compare loss and gradients of CONFIG's first batch between MLX and PyTorch; train nothing."""
    task = build_task(config)
    return _check(task, config, make_step(backend, task, config))


def make_step(backend: str, task: Task, config: TrainConfig) -> Step:
    """Return TASK under training in BACKEND.

    Raises:
        BadInputError: there is no such backend.
    """
    if backend == "mlx":
        from .steps.mlx import MlxStep

        return MlxStep(task, config)
    if backend == "torch":
        from .steps.torch import TorchStep

        return TorchStep(task, config)
    raise BadInputError(f"there is no backend {backend}; choose from {', '.join(BACKENDS)}")


def _admit(config: TrainConfig | None, out: Path, *, resume: bool) -> TrainConfig:
    """Return the configuration of the run in OUT, new or resumed."""
    saved = out / CONFIG
    if not resume:
        if config is None:
            raise BadInputError("a new run needs a configuration: --config FILE or a recipe's name")
        if out.exists():
            raise TargetExistsError(f"{out} exists; go on with --resume or choose another folder")
        return config
    if not saved.is_file():
        raise BadInputError(f"{out} holds no run to resume: it has no {CONFIG}")
    old = load_config(saved)
    if config and (problems := differences(old, config)):
        raise MismatchError(f"{out} holds a run of another configuration", problems)
    return old


def _found(out: Path, config: TrainConfig, checked: Preflight) -> None:
    """Make the run's folder with its configuration, in one step."""
    staged = out.with_name(f".{out.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    (staged / CONFIG).write_text(dump_config(config), encoding="utf-8")
    (staged / PREFLIGHT).write_text(
        json.dumps(checked.document(), indent=1) + "\n", encoding="utf-8"
    )
    staged.rename(out)


def _check(task: Task, config: TrainConfig, step: Step) -> Preflight:
    """Check the gradients of the run's first batch in STEP's backend and in PyTorch."""
    steps = {step.backend: step}
    if step.backend != "torch":
        steps["torch"] = make_step("torch", task, config)
    first = task.splits["train"].batch(task.order(config)[0])
    return check_gradients(
        steps, task.parameters(), first, seed=config.seed, tolerance=config.tolerance
    )
