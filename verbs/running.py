"""What every verb that writes does around its job: options in, the outcome out."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..converters.common.exits import Exit
from .output import show_outcome

if TYPE_CHECKING:
    from ..jobs.options import ReadOptions
    from ..jobs.pipeline import Outcome

Kind = TypeVar("Kind", bound="ReadOptions")


def options_of(kind: type[Kind], chosen: dict[str, Any]) -> Kind:
    """Return the options of this KIND that a verb was given."""
    from .progress import report

    given = {**chosen, "map": chosen["map_name"], "report": report}
    if "max_shard_size" in chosen:
        given["max_shard_size"] = int(chosen["max_shard_size"] * 1e9)
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


def finish(outcome: Outcome, *, as_json: bool, accept: tuple[str, ...] = ()) -> None:
    """Print what was done, the verdict last, and exit with its code."""
    show_outcome(outcome, as_json=as_json)
    code = outcome.verdict.exit_code(accept) if outcome.verdict and outcome.wanted else Exit.DONE
    click.get_current_context().exit(code)


def prepare_mlx(*, training: bool = False) -> None:
    """Give MLX a fast BLAS; only verbs that run MLX call it.

    But for TRAINING, threads that wait for their next part of a product sleep: between two products a
    check reads weights, and threads that spin meanwhile took a third of its processor time.
    """
    from ..converters.runtimes.blas import preload_blas

    if not training:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    preload_blas()
