"""What every verb that writes does around its job: options in, the outcome out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..converters.common.exits import Exit

if TYPE_CHECKING:
    from ..jobs import Options, Outcome


def options_of(chosen: dict[str, Any]) -> Options:
    """Collect the shared options of a verb that writes."""
    from ..jobs import Options
    from .progress import report

    return Options(
        force=chosen["force"],
        dry_run=chosen.get("dry_run", False),
        check=chosen.get("check", "quick"),
        map=chosen["map_name"],
        trust_code=chosen["trust_code"],
        candidate_code=chosen.get("candidate_code"),
        inputs=chosen.get("inputs"),
        original=chosen.get("original"),
        sidecar=chosen.get("sidecar", "small"),
        max_shard_size=int(chosen.get("max_shard_size", 5.0) * 1e9),
        report=report,
    )


def finish(outcome: Outcome, *, as_json: bool, accept: tuple[str, ...] = ()) -> None:
    """Print what was done, the verdict last, and exit with its code."""
    from .output import show_outcome

    show_outcome(outcome, as_json=as_json)
    code = outcome.verdict.exit_code(accept) if outcome.verdict and outcome.wanted else Exit.DONE
    click.get_current_context().exit(code)


def prepare_mlx() -> None:
    """Give MLX a fast BLAS; only verbs that run MLX call it."""
    from ..converters.runtimes.blas import preload_blas

    preload_blas()
