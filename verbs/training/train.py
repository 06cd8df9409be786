"""``weighbridge train``, and the check before it: ``weighbridge preflight``."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from ...converters.common.exits import Exit
from ...converters.common.steps import LOGGER
from ..options import configured
from ..output import show_preflight, show_training
from ..running import prepare_mlx


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(("mlx", "torch")),
    help="Framework that trains: mlx where none is named, with --resume that of the run.",
)
@click.option("--resume", is_flag=True, help="Go on where the run in RUN stopped.")
@click.option("--profile", is_flag=True, help="Leave a report on memory in RUN, with a picture.")
@click.option(
    "--compare",
    type=click.IntRange(1),
    metavar="N",
    help="Train N updates in both backends; say how far losses are apart, and how fast each is.",
)
@configured
def train(
    run: Path | None,
    backend: str | None,
    recipe: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    compare: int | None,
    **how: Any,
) -> None:
    """Train a model; RUN gets its adapter or weights, checkpoints and metrics.

    Nothing but the backend needs to be said: the recipe docstrings trains a small encoder on texts
    of Python's own library, and RUN is run, or run-2 where that is taken, and so on.

    Example: weighbridge train --backend mlx

    Example: weighbridge train run --recipe minilm-lora --backend mlx --set model=minilm-mlx
    """
    prepare_mlx(training=True)
    from ...trainers.launchers import is_first

    speaks = is_first()
    if not speaks:
        LOGGER.setLevel(logging.WARNING)
    if compare:
        from ...jobs.training.compare import compare as run_both

        show_training(run_both(run, recipe, overrides, compare), as_json=as_json)
        return
    from ...jobs.training import train as run_training

    with _view() if speaks else nullcontext() as progress:
        result = run_training(run, backend, recipe, overrides, progress=progress, **how)
    if speaks:
        show_training(result, as_json=as_json)


def _view() -> Any:
    """Return what shows a run on a terminal; elsewhere nothing does, and plain lines are written."""
    from .view import TrainingView, is_wanted

    return TrainingView(sys.stderr) if is_wanted() else nullcontext()


@click.command()
@configured
@click.pass_context
def preflight(
    ctx: click.Context, recipe: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Compare loss and every gradient on the first batch, MLX against PyTorch.

    Example: weighbridge preflight --recipe minilm-lora --set model=all-MiniLM-L6-v2
    """
    prepare_mlx(training=True)
    from ...jobs.training import preflight as run_preflight

    result = run_preflight(recipe, overrides)
    show_preflight(result, as_json=as_json)
    ctx.exit(Exit.DONE if result.ok else Exit.DIFFERENT)
