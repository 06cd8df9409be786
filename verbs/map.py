"""The verbs of ``weighbridge map``: show the map of a model, infer one for a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..converters.common.exits import Exit, exit_line
from .options import MODEL, as_json, candidate, opening, own_inputs
from .output import dump, show_inferred, show_text
from .running import options_of


@click.group("map")
def map_group() -> None:
    """Show or infer the map between a model's torch and MLX names."""


@map_group.command("show")
@click.argument("source", type=MODEL)
@opening
@as_json
def show(source: str, as_json: bool, **chosen: Any) -> None:
    """Print the map of SOURCE: a table, one recorded when it was made, or one learned.

    A learned map is read off the code of the MLX library that will load the model, for the tensors
    that SOURCE has; nothing is loaded. The text can be kept, edited and given to --map.

    Example: weighbridge map show Mixtral-8x7B > mixtral.wmap
    """
    from ..jobs.mapping import show_map

    shown = show_map(source, map_name=chosen["map_name"], trust_code=chosen["trust_code"])
    if as_json:
        dump(shown._asdict())
    else:
        show_text(shown.document())


@map_group.command("infer", epilog=exit_line())
@click.argument("source", type=MODEL)
@click.argument("port", type=MODEL)
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace TARGET, if Weighbridge wrote it.")
@candidate
@own_inputs
@opening
@as_json
@click.pass_context
def infer(  # a verb's options
    ctx: click.Context, /, source: str, port: str, target: Path, as_json: bool, **chosen: Any
) -> None:
    """Infer the map from the torch model SOURCE to PORT, your own MLX code; write TARGET.wmap.

    PORT is a directory with converted weights, or MODULE:FUNCTION that builds an mlx.nn module.
    Every guess is marked in the text. It is done only when the port, with SOURCE's weights moved
    through the map, passes a parity check.

    Example: weighbridge map infer my_model:build my_port:build mine.wmap
    """
    from ..converters.runtimes.blas import preload_blas
    from ..jobs.infer import infer_map
    from ..jobs.mapping import write_map
    from ..jobs.options import CheckOptions, PublishOptions

    preload_blas()
    theirs = options_of(PublishOptions, chosen)
    place = theirs.begin(target, "map", source, port)
    ours = CheckOptions(candidate_code=chosen["candidate_code"], inputs=chosen["inputs"])
    inferred = infer_map(theirs.open(source), PublishOptions().open(port), ours)
    write_map(inferred.text, place)
    show_inferred(inferred, target, as_json=as_json)
    ctx.exit(inferred.verdict.exit_code() if inferred.verdict else Exit.UNDECIDED)
