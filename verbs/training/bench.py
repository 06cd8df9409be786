"""``weighbridge bench``: rows of speed and memory of a recipe, and sweeps of whole trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...converters.common.exits import Exit
from ..options import as_json, together
from ..output import dump, show_table, show_text
from ..running import prepare_mlx

BACKENDS = ("mlx", "torch")
asked = together(
    click.option("--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Both."),
    click.option(
        "--batch-size", "batch_sizes", multiple=True, type=click.IntRange(1), help="Some."
    ),
    click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Such as bfloat16."),
    click.option(
        "--compile",
        "compiled",
        multiple=True,
        type=click.Choice(("on", "off")),
        help="Compile the MLX step or not, or both.",
    ),
    click.option("--updates", type=click.IntRange(1), default=10, help="Timed in every row."),
    click.option(
        "--ladder", is_flag=True, help="What each optimisation in MLX adds to those before."
    ),
    click.option("--quantized", default="", metavar="DIR", help="4-bit model for the ladder."),
)


@click.command()
@click.argument("recipe")
@click.argument("folder", required=False, type=click.Path(path_type=Path), default=Path("bench"))
@asked
@click.option("--sweep", "texts", multiple=True, metavar="KEY=A,B,C", help="Train all of them.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a setting.")
@as_json
def bench(
    recipe: str,
    folder: Path,
    texts: tuple[str, ...],
    overrides: tuple[str, ...],
    **how: Any,
) -> None:
    """Measure training and inference of RECIPE, or train a sweep; FOLDER gets tables and pictures.

    Every row runs in a process of its own. Ratios are to the row "eager, evaluated each step" of the
    same backend. With --sweep, once or several times, all combinations are trained whole, in MLX or
    the backend named; what is done is not done again.

    Example: weighbridge bench docstrings --batch-size 16 --batch-size 32

    Example: weighbridge bench gated-lm sweep --sweep seed=0,1 --sweep model_options.unit=gelu,swiglu --set steps=20
    """
    prepare_mlx(training=True)
    from ...jobs.training import bench as jobs

    json = how.pop("as_json")
    if texts:
        backend = (how["backends"] or BACKENDS)[0]
        rows = jobs.sweep(recipe, folder, overrides, backend, texts)
        show_sweep(rows, as_json=json)
        click.get_current_context().exit(
            Exit.FAILED if any("failed" in row for row in rows) else Exit.DONE
        )
    how["compiled"] = tuple(it == "on" for it in how["compiled"])
    how["backends"] = how["backends"] or BACKENDS
    show_bench(jobs.bench(recipe, folder, overrides, jobs.Bench(**how)), as_json=json)


def show_bench(rows: Any, *, as_json: bool) -> None:
    """Print the table of a benchmark, the phases of its rows, and what was not run."""
    from ...trainers.bench.table import COLUMNS, cells, lines

    if as_json:
        dump(rows)
        return
    show_table([*COLUMNS], [*cells(rows)])
    for line in lines(rows):
        show_text(line)


def show_sweep(rows: Any, *, as_json: bool) -> None:
    """Print the table of a sweep."""
    from ...trainers.bench.sweep import cells

    if as_json:
        dump(rows)
        return
    metric = next((row["metric"] for row in rows if "metric" in row), "metric")
    columns = ["settings", f"{metric} before", "best", "test", "steps", "seconds"]
    show_table(columns, [*cells(rows)])
