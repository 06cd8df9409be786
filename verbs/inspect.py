"""``weighbridge inspect`` and ``weighbridge doctor``: what a path holds, what this machine can run."""

from __future__ import annotations

from typing import Any

import click

from ..converters.common.exits import Exit
from .options import MODEL, as_json, opening
from .output import show_facts


@click.command()
@click.argument("path", type=MODEL)
@opening
@as_json
def inspect(path: str, as_json: bool, **chosen: Any) -> None:
    """Say what PATH is, what it holds, and what can be done with it.

    Example: weighbridge inspect minilm-mlx
    """
    from ..jobs.inspecting import inspect_spec

    show_facts(inspect_spec(path, **chosen), as_json=as_json)


@click.command()
@as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what is installed and which routes run on this machine."""
    from ..jobs.inspecting import examine_machine

    facts = examine_machine()
    show_facts(facts, as_json=as_json)
    ctx.exit(Exit.DIFFERENT if facts["problems"] else Exit.DONE)
