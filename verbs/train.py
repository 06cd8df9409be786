"""``weighbridge train``, and the check before it: ``weighbridge preflight``."""

from __future__ import annotations

from pathlib import Path

import click

from ..converters.common.exits import Exit
from .options import configured
from .running import prepare_mlx


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(("mlx", "torch")),
    default="mlx",
    show_default=True,
    help="Framework that trains.",
)
@click.option("--resume", is_flag=True, help="Go on where the run in TARGET stopped.")
@configured
def train(
    target: Path,
    backend: str,
    resume: bool,
    config_path: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a model, writing adapters, checkpoints and metrics to TARGET.

    Example: weighbridge train run --backend mlx --config minilm-lora --set model=minilm-mlx
    """
    prepare_mlx()
    from ..jobs import train as run_training
    from .output import show_training

    show_training(
        run_training(target, backend, config_path, overrides, resume=resume), as_json=as_json
    )


@click.command()
@configured
@click.pass_context
def preflight(
    ctx: click.Context, config_path: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Compare loss and every gradient on the first batch, MLX against PyTorch.

    Example: weighbridge preflight --config minilm-lora --set model=all-MiniLM-L6-v2
    """
    prepare_mlx()
    from ..jobs import preflight as run_preflight
    from .output import show_preflight

    result = run_preflight(config_path, overrides)
    show_preflight(result, as_json=as_json)
    ctx.exit(Exit.DONE if result.ok else Exit.DIFFERENT)
