"""The verbs of ``weighbridge convert``: weights from one framework to another, adapters from one dialect to another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..converters.routes import CONVERSIONS, Route
from . import adapters
from .options import (
    ADAPTER,
    MODEL,
    gguf_to_torch,
    own_inputs,
    shards,
    sidecar,
    to_mlx,
    to_torch,
    writing,
)
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
    @own_inputs
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


class FileKind(NamedTuple):
    """A kind of file that weights come back from.

    Attributes:
        word: what a person calls one.
        suffix: the end of its name.
        about: what the help says of it.
        job: module and function below ``jobs.importing`` that convert it.
        options: of the conversion to PyTorch.
    """

    word: str
    suffix: str
    about: str
    job: tuple[str, str]
    options: Callable[[Any], Any]


OF_EXPORTS = """Weights that an export of ours wrote are found by its record; others by names and shapes. What is in
    float16 stays so. SOURCE is run against the model with the weights found, which has to agree."""
FILES = {
    "gguf": FileKind(
        "a GGUF file",
        "-q4_0.gguf",
        """Every code and scale stays as it is. Blocks of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, MXFP4 and
    NVFP4 stay codes; what MLX has no groups for, such as Q6_K, becomes dense in float32.""",
        ("gguf", "convert_gguf"),
        gguf_to_torch,
    ),
    "coreml": FileKind(
        "a Core ML package", ".mlpackage", OF_EXPORTS, ("programs", "convert_program"), to_torch
    ),
    "coreai": FileKind(
        "a Core AI asset", ".aimodel", OF_EXPORTS, ("programs", "convert_program"), to_torch
    ),
    "onnx": FileKind(
        "an ONNX file", ".onnx", OF_EXPORTS, ("programs", "convert_program"), to_torch
    ),
}


def add_file(kind: str, target: str, name: str) -> None:
    """Add the verb that converts a file of KIND to the framework TARGET, which people call NAME."""
    file = FILES[kind]

    @convert.command(
        f"{kind}-to-{target}",
        short_help=f"Make {name} directory from {file.word}.",
        help=f"""Make {name} directory from SOURCE, {file.word}.

    {file.about}

    Example: weighbridge convert {kind}-to-{target} model{file.suffix} model-{target} --like model
    """,
    )
    @click.argument("source", type=click.Path(path_type=Path))
    @click.argument("target", type=click.Path(path_type=Path))
    @like_directory
    @(file.options if target == "torch" else sidecar)
    @shards
    @writing
    def command(
        source: Path, like: str, as_json: bool, accept: tuple[str, ...], **chosen: Any
    ) -> None:
        if chosen["check"] != "none" and not chosen["dry_run"]:
            prepare_mlx()
        from ..jobs import importing
        from ..jobs.options import Options

        place = chosen.pop("target")
        options = options_of(Options, {**chosen, "accept": accept})
        job = getattr(import_module(f".{file.job[0]}", importing.__name__), file.job[1])
        finish(
            job(source, place, target, like=Path(like), options=options),
            as_json=as_json,
            accept=accept,
        )


for _route in CONVERSIONS:
    add_conversion(_route)
for _kind in FILES:
    add_file(_kind, "mlx", "an MLX")
    add_file(_kind, "torch", "a PyTorch")
for _verb in adapters.CONVERSIONS:
    convert.add_command(_verb)
