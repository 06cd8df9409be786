"""The verbs of ``weighbridge convert``: weights from one framework to another, adapters from one dialect to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..converters.routes import CONVERSIONS, Route
from . import adapters
from .options import ADAPTER, MODEL, shards, to_mlx, to_torch, writing
from .running import finish, options_of, prepare_mlx


@click.group()
def convert() -> None:
    """Convert weights from one framework to another."""


def add_conversion(route: Route) -> None:
    """Add the verb of ROUTE to ``convert``."""

    @convert.command(route.verb.split()[1], help=route.help, short_help=route.summary)
    @click.argument("source", type=MODEL)
    @click.argument("target", type=click.Path(path_type=Path))
    @click.option("--adapter", type=ADAPTER, help="Merge this LoRA adapter on the way.")
    @(to_torch if route.target == "torch" else to_mlx)
    @shards
    @writing
    def command(
        source: str,
        target: Path,
        adapter: Path | None,
        as_json: bool,
        accept: tuple[str, ...],
        **chosen: Any,
    ) -> None:
        if chosen["check"] != "none" and not chosen["dry_run"]:
            prepare_mlx()
        from ..jobs.converting import convert as convert_model
        from ..jobs.options import Options

        options = options_of(Options, {**chosen, "accept": accept})
        outcome = convert_model(source, target, route.target, adapter=adapter, options=options)
        finish(outcome, as_json=as_json, accept=accept)


for _route in CONVERSIONS:
    add_conversion(_route)
for _verb in adapters.CONVERSIONS:
    convert.add_command(_verb)
