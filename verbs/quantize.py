"""The verb ``quantize``."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import click

from .options import MODEL, library, shards, writing
from .running import finish, options_of, prepare_mlx

TEXT = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("source", type=MODEL)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--bits", type=int, metavar="N", help="Bits of a code: 2, 3, 4, 5, 6, 8.  [default: 4]"
)
@click.option(
    "--group-size",
    type=int,
    metavar="N",
    help="Columns that share a scale: 32, 64, 128.  [default: 64, or the mode's own]",
)
@click.option(
    "--mode",
    default="affine",
    show_default=True,
    metavar="NAME",
    help="affine, mxfp4, mxfp8 or nvfp4.",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="PATTERN=VALUE",
    help="For modules with PATTERN in their path (or a glob): 6, 8:32, mxfp4, or none to keep them.",
)
@click.option(
    "--method",
    metavar="NAME",
    help="search for scales with the least error; mlx: bit for bit what mx.quantize makes."
    "  [default: search]",
)
@click.option(
    "--dtype",
    metavar="NAME",
    help="Of the scales: bfloat16, float16 or float32.  [default: that of each weight]",
)
@click.option(
    "--bits-per-weight",
    type=float,
    metavar="X",
    help="On average, scales included: bits of each weight are found by what it errs with fewer.",
)
@click.option(
    "--calibrate",
    type=TEXT,
    metavar="TEXT",
    help="Choose codes for what layers are given as the model reads the file TEXT (GPTQ).",
)
@click.option(
    "--measure",
    type=TEXT,
    metavar="TEXT",
    help="Compare outputs before and after on the file TEXT, and with those by mx.quantize.",
)
@library
@shards
@writing
def quantize(
    source: str, target: Path, as_json: bool, accept: tuple[str, ...], **chosen: Any
) -> None:
    """Quantize SOURCE as MLX does, into TARGET.

    SOURCE is in MLX's layout, or in PyTorch's, which is converted on the way. Which modules are
    quantized is decided by the library that has the model's class. Size before and after and the
    error of the weights are printed.

    Example: weighbridge quantize minilm-mlx minilm-4bit --bits 4
    """
    runs = chosen["check"] != "none" and not chosen["dry_run"]
    if runs or any(chosen[it] for it in ("calibrate", "bits_per_weight", "measure")):
        prepare_mlx()
    from ..jobs.options import Options
    from ..jobs.quantizing.quantize import quantize as quantize_model
    from ..jobs.quantizing.request import request_of

    request = request_of(**{name: chosen.pop(name) for name in signature(request_of).parameters})
    options = options_of(Options, {**chosen, "accept": accept})
    outcome = quantize_model(source, target, request, options=options)
    finish(outcome, as_json=as_json, accept=accept)
