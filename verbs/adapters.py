"""Verbs of adapters: ``merge``, ``convert mlx-to-peft`` and ``convert peft-to-mlx``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..converters.routes import DIALECTS, Dialect
from .options import ADAPTER, MODEL, destined, own_inputs, trained_on, writing
from .running import finish, options_of, prepare_mlx


@click.command()
@click.argument("base", type=MODEL)
@click.argument("adapter", type=ADAPTER)
@click.argument("target", type=click.Path(path_type=Path))
@trained_on
@click.option(
    "--original",
    type=MODEL,
    metavar="DIR",
    help="BASE is quantized: merge into the weights that it was made from, and quantize the result.",
)
@click.option(
    "--promote",
    is_flag=True,
    help="BASE is quantized: keep layers at 8 or 16 bits where the update would be rounded away.",
)
@writing
def merge(
    base: str, adapter: Path, target: Path, as_json: bool, accept: tuple[str, ...], **chosen: Any
) -> None:
    """Merge a LoRA ADAPTER into BASE, keeping BASE's framework.

    How much of each update survives the rounding is measured and printed, the worst first. What
    would be rounded away is refused, and the remedies are listed with what each costs; with --force it
    is written all the same.

    Example: weighbridge merge minilm-mlx run/ minilm-tuned-mlx
    """
    if chosen["check"] != "none":
        prepare_mlx()
    from ..jobs.merging.merge import merge as merge_adapter
    from ..jobs.options import Options

    ways = {"trained_on": chosen.pop("trained_on"), "promote": chosen.pop("promote")}
    options = options_of(Options, {**chosen, "accept": accept})
    outcome = merge_adapter(base, adapter, target, options=options, **ways)
    finish(outcome, as_json=as_json, accept=accept)


def conversion(dialect: Dialect) -> click.Command:
    """Return the verb that converts adapters to DIALECT."""

    @click.command(dialect.verb, help=dialect.help, short_help=dialect.summary)
    @click.argument("adapter", type=ADAPTER)
    @click.argument("target", type=click.Path(path_type=Path))
    @click.option(
        "--base",
        type=MODEL,
        metavar="DIR",
        help="The model that the adapter is for, in either framework; by default the one it names.",
    )
    @trained_on
    @destined
    @own_inputs
    @writing
    def command(
        adapter: Path, target: Path, as_json: bool, accept: tuple[str, ...], **chosen: Any
    ) -> None:
        if chosen["check"] != "none" and not chosen["dry_run"]:
            prepare_mlx()
        from ..jobs.adapters import AdapterRequest, base_of, convert_adapter
        from ..jobs.options import WriteOptions

        wanted = {name: chosen.pop(name) for name in ("base", "trained_on", "destination")}
        wanted["base"] = wanted["base"] or base_of(adapter)
        request = AdapterRequest(dialect.name, **wanted)
        outcome = convert_adapter(
            adapter, target, request, options=options_of(WriteOptions, chosen)
        )
        finish(outcome, as_json=as_json, accept=accept)

    return command


CONVERSIONS = tuple(conversion(dialect) for dialect in DIALECTS)
