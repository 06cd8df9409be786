"""The verbs of ``weighbridge convert``: weights from one framework to another, adapters from one dialect to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..converters.routes import CONVERSIONS, Route
from . import adapters
from .options import ADAPTER, MODEL, gguf_to_torch, shards, sidecar, to_mlx, to_torch, writing
from .running import finish, options_of, prepare_mlx

like_directory = click.option(
    "--like",
    type=MODEL,
    required=True,
    metavar="DIR",
    help="The model's directory, with config.json and tokenizer; its weights are not needed.",
)


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

        scheme = chosen.pop("quantize", None)
        options = options_of(Options, {**chosen, "accept": accept})
        if scheme:
            from ..jobs.quantizing.quantize import convert_quantized

            outcome = convert_quantized(source, target, scheme, adapter=adapter, options=options)
        else:
            outcome = convert_model(source, target, route.target, adapter=adapter, options=options)
        finish(outcome, as_json=as_json, accept=accept)


def add_gguf(target: str, name: str) -> None:
    """Add the verb that converts a GGUF file to the framework TARGET, which people call NAME."""

    @convert.command(
        f"gguf-to-{target}",
        short_help=f"Make {name} directory from a GGUF file.",
        help=f"""Make {name} directory from the GGUF file SOURCE: every code and scale as it is.

    Blocks of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, MXFP4 and NVFP4 stay codes; what MLX has no
    groups for, such as Q6_K, becomes dense in float32.

    Example: weighbridge convert gguf-to-{target} model-q4_0.gguf model-{target} --like model
    """,
    )
    @click.argument("source", type=click.Path(path_type=Path))
    @click.argument("target", type=click.Path(path_type=Path))
    @like_directory
    @(gguf_to_torch if target == "torch" else sidecar)
    @shards
    @writing
    def command(
        source: Path, like: str, as_json: bool, accept: tuple[str, ...], **chosen: Any
    ) -> None:
        if chosen["check"] != "none" and not chosen["dry_run"]:
            prepare_mlx()
        from ..jobs.importing.gguf import convert_gguf
        from ..jobs.options import Options

        place = chosen.pop("target")
        options = options_of(Options, {**chosen, "accept": accept})
        outcome = convert_gguf(source, place, target, like=Path(like), options=options)
        finish(outcome, as_json=as_json, accept=accept)


def add_program(kind: str, suffix: str, target: str, name: str) -> None:
    """Add the verb that converts a file of KIND, named ``*SUFFIX``, to the framework TARGET, called NAME."""
    word = {"coreml": "a Core ML package", "onnx": "an ONNX file"}[kind]

    @convert.command(
        f"{kind}-to-{target}",
        short_help=f"Make {name} directory from {word}.",
        help=f"""Make {name} directory from SOURCE, {word}.

    Weights that `weighbridge export {kind}` wrote are found by its record; others by names and shapes. What
    is in float16 stays so. SOURCE is run against the model with the weights found, which has to agree.

    Example: weighbridge convert {kind}-to-{target} model{suffix} model-{target} --like model
    """,
    )
    @click.argument("source", type=click.Path(path_type=Path))
    @click.argument("target", type=click.Path(path_type=Path))
    @like_directory
    @(to_torch if target == "torch" else sidecar)
    @shards
    @writing
    def command(
        source: Path, like: str, as_json: bool, accept: tuple[str, ...], **chosen: Any
    ) -> None:
        if chosen["check"] != "none" and not chosen["dry_run"]:
            prepare_mlx()
        from ..jobs.importing.programs import convert_program
        from ..jobs.options import Options

        place = chosen.pop("target")
        options = options_of(Options, {**chosen, "accept": accept})
        outcome = convert_program(source, place, target, like=Path(like), options=options)
        finish(outcome, as_json=as_json, accept=accept)


for _route in CONVERSIONS:
    add_conversion(_route)
add_gguf("mlx", "an MLX")
add_gguf("torch", "a PyTorch")
for _kind, _suffix in (("coreml", ".mlpackage"), ("onnx", ".onnx")):
    add_program(_kind, _suffix, "torch", "a PyTorch")
    add_program(_kind, _suffix, "mlx", "an MLX")
for _verb in adapters.CONVERSIONS:
    convert.add_command(_verb)
