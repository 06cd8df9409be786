"""Benchmarks and sweeps of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...converters.common.system import writing
from ...errors import BadInputError
from .recipes import require_memory_of
from .recipes import train as train_recipe

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What a benchmark measures.

    Attributes:
        backends: ``mlx``, ``torch``.
        batch_sizes: of the rows; the recipe's where there is none.
        dtypes: likewise.
        compiled: whether the MLX step is compiled; both where both are asked for.
        updates: timed ones of every row.
        ladder: the rungs of optimisation in MLX in place of a product of settings.
        quantized: a directory of the recipe's model with weights of 4 bits, for the last rung.
    """

    backends: tuple[str, ...] = ("mlx", "torch")
    batch_sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    compiled: tuple[bool, ...] = ()
    updates: int = 10
    ladder: bool = False
    quantized: str = ""


def bench(recipe: str, folder: Path, overrides: Sequence[str], what: Bench) -> list[Row]:
    """Measure RECIPE as WHAT says, and leave ``bench.json`` and ``bench.png`` in FOLDER."""
    from ...trainers.bench.entries import absent, ladder, matrix
    from ...trainers.bench.plot import plot_rows
    from ...trainers.bench.table import measured, write
    from ...trainers.bundled import provide
    from ...trainers.config import load_config
    from ...trainers.launchers import require_alone

    require_alone("bench")
    config = load_config(recipe, overrides)
    require_memory_of(config)
    provide(config.sources())
    asked = (what.backends, what.batch_sizes, what.dtypes, what.compiled)
    entries = ladder(config) if what.ladder else matrix(config, *asked)
    rows = measured(config, entries, what.updates, what.quantized)
    used = {row["backend"]: row["device"] for row in rows if "device" in row}
    rows += measured(config, absent([*used], used), what.updates, "")
    with writing(folder):
        write(rows, folder, plot_rows)
    return rows


def sweep(
    recipe: str, folder: Path, overrides: Sequence[str], backend: str, texts: Sequence[str]
) -> list[Row]:
    """Train RECIPE for the product of TEXTS (``key=a,b,c``), each run in a folder below FOLDER."""
    from ...trainers.bench.sweep import combinations
    from ...trainers.bench.sweep import sweep as run
    from ...trainers.config import load_config
    from ...trainers.launchers import require_alone

    require_alone("bench")
    settings: list[Mapping[str, str]] = [*combinations(texts)]
    for chosen in settings:  # all mistakes at once, before the first run
        load_config(recipe, [*overrides, *(f"{key}={value}" for key, value in chosen.items())])
    if folder.is_file():
        raise BadInputError(f"{folder} is a file; a sweep needs a folder")

    def train(out: Path, changed: list[str], resume: bool) -> object:
        how = None if resume else recipe
        return train_recipe(
            out, backend, how, [] if resume else [*overrides, *changed], resume=resume
        )

    with writing(folder):
        return run(folder, settings, train)
