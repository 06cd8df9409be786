"""The verbs of ``weighbridge export``: a model in the format of a device or of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..converters.coreml.compression import GRIDS, TABLES, Compression
from .options import (
    MODEL,
    accepting,
    allow_lossy,
    original,
    own_inputs,
    parse_size,
    publishing,
    together,
    writing,
)
from .running import finish, options_of, prepare_mlx

if TYPE_CHECKING:
    from ..converters.coreml.options import PackageOptions

# How a package's weights are compressed, and what layers read.
OF_WEIGHTS = ("prune", "palettize", "quantize", "block", "activations", "calibrate")
OF_PROGRAMS = ("stateful", "opset", "external_data", "quant_format")  # what some of them have
OF_CODES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "MXFP4",
    "NVFP4",
)  # what keeps those of a quantized model
SYSTEMS = ("iOS15", "iOS16", "iOS17", "iOS18", "iOS26")  # converters.coreml.options
UNITS = ("cpu", "gpu", "ane", "all")
ABOUT = ("author", "description", "license", "release")
LAYOUTS = ("RGB", "BGR", "GRAY")  # converters.models.pictures
PRECISIONS = ("fp32", "fp16", "float32", "float16")


def dtype_of(_: Any, __: Any, precision: str) -> str:
    """Return PRECISION by the name of its dtype."""
    return precision.replace("fp", "float")


upper_sizes = click.option(
    "--upper", metavar="DIMENSION=SIZE", multiple=True, help="Largest size of a flexible dimension."
)


programming = together(
    click.argument("source", type=MODEL),
    click.argument("target", type=click.Path(path_type=Path)),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        callback=dtype_of,
        default="fp32",
        show_default=True,
        help="Of weights and computation.",
    ),
    upper_sizes,
    own_inputs,
)


def sizes_of(upper: tuple[str, ...]) -> dict[str, int]:
    """Return what ``--upper`` says, dimension -> size."""
    return {
        name: parse_size(item, size) for item in upper for name, _, size in [item.partition("=")]
    }


compressing = together(
    click.option(
        "--quantize",
        type=click.Choice(GRIDS),
        help="Weights as codes: int8 with a scale by channel, int4 in blocks.",
    ),
    click.option(
        "--block",
        type=click.IntRange(2),
        metavar="COLUMNS",
        help="Columns that share a scale.  [default: 32 for int4]",
    ),
    click.option(
        "--palettize",
        type=click.Choice([str(bits) for bits in TABLES]),
        callback=lambda _, __, bits: int(bits) if bits else None,
        metavar="BITS",
        help="Weights as indices of 1, 2, 3, 4, 6 or 8 bits into a table of each.",
    ),
    click.option(
        "--prune",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="RATIO",
        help="The part of each weight's numbers that become zeros, the smallest ones.",
    ),
    click.option(
        "--activations",
        type=click.Choice(GRIDS[:1]),
        help="What layers read as codes too (with --quantize int8: W8A8), in ranges that are measured.",
    ),
    click.option(
        "--calibrate",
        type=click.Path(path_type=Path),
        metavar="FILE.npz",
        help="Inputs on which these are measured, as in parity check --inputs.  [default: those of a check]",
    ),
)
stateful = click.option(
    "--stateful",
    is_flag=True,
    help="A causal language model keeps keys and values in states and goes on with a text.",
)
packaging = together(
    stateful,
    click.option(
        "--multifunction",
        is_flag=True,
        help="So in two functions: prefill for any number of tokens, decode for one; weights and states are shared.",
    ),
    click.option(
        "--target",
        "system",
        type=click.Choice(SYSTEMS),
        help="The oldest system.  [default: iOS17; iOS18 with --stateful or several --sizes]",
    ),
    click.option(
        "--sizes",
        metavar="DIMENSION=SIZE,SIZE",
        multiple=True,
        help="The only sizes of a dimension, in place of a range.",
    ),
    click.option(
        "--name",
        "names",
        metavar="PORT=NAME",
        multiple=True,
        help="Another name for an input or output.",
    ),
    click.option(
        "--compute-units",
        "units",
        type=click.Choice(UNITS),
        help="Where it should run: a note in the package, for the program that loads it.",
    ),
    *(click.option(f"--{name}", help=f"The {name} that the package names.") for name in ABOUT),
)


def numbers_of(_: Any, __: Any, text: str | None) -> tuple[float, ...]:
    """Return the numbers of TEXT, parted by commas."""
    try:
        return tuple(float(it) for it in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} should be numbers, such as 0.5,0.5,0.5") from None


VISION = ("image", "mean", "std", "layout", "labels")
picturing = together(
    click.option("--image", metavar="PORT", help="An input takes pictures of 8 bits a channel."),
    *(
        click.option(
            f"--image-{name}",
            name,
            metavar="NUMBER,...",
            callback=numbers_of,
            help=f"{does}, one a channel, of colours from 0 to 1.  [default: the image processor's]",
        )
        for name, does in (("mean", "Is subtracted"), ("std", "Is divided by"))
    ),
    click.option(
        "--image-layout",
        "layout",
        type=click.Choice(LAYOUTS),
        help="Order of the channels that the model wants.  [default: RGB, or GRAY of one]",
    ),
    click.option(
        "--labels",
        metavar="config|FILE",
        help="Give a class label: the names in config.json, or a text file with one a line.",
    ),
)


def pairs_of(items: tuple[str, ...], option: str) -> dict[str, str]:
    """Return what OPTION's ITEMS say, each KEY=VALUE."""
    if wrong := [item for item in items if not all(item.partition("=")[::2])]:
        raise click.BadParameter(f"{wrong[0]!r} is not of the form KEY=VALUE", param_hint=option)
    return {key: value for item in items for key, _, value in [item.partition("=")]}


def package_of(chosen: dict[str, Any]) -> PackageOptions:
    """Take out of CHOSEN what a package is to be, and return it."""
    from ..converters.coreml.options import PackageOptions

    about = {name: text for name in ABOUT if (text := chosen.pop(name))}
    sizes = {
        name: tuple(parse_size(f"{name}={listed}", size) for size in listed.split(","))
        for name, listed in pairs_of(chosen.pop("sizes"), "--sizes").items()
    }
    names = pairs_of(chosen.pop("names"), "--name")
    rest = {name: chosen.pop(name) for name in ("stateful", "multifunction", "system", "units")}
    return PackageOptions(names=names, sizes=sizes, about=about, **rest)


@click.group()
def export() -> None:
    """Export a model to the format of a device."""


@export.command("coreml")
@click.argument("source", type=MODEL)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    "--compute",
    "compute",
    type=click.Choice(("mixed", *PRECISIONS)),
    callback=dtype_of,
    default="mixed",
    show_default=True,
    help="Of the package; mixed is float16 with positions, masks and norms in float32.",
)
@upper_sizes
@compressing
@packaging
@picturing
@own_inputs
@writing
def export_coreml(
    source: str,
    target: Path,
    upper: tuple[str, ...],
    as_json: bool,
    accept: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Export SOURCE to TARGET.mlpackage with named, flexible inputs.

    What is said of weights is done together: zeros, tables of what is left, and these in int8. How far weights and
    outputs moved is printed, and the check holds each weight against the source's.

    Example: weighbridge export coreml minilm-tuned MiniLM.mlpackage --upper sequence=256

    Example: weighbridge export coreml minilm-tuned MiniLM.mlpackage --quantize int4 --block 32

    Example: weighbridge export coreml vit-tuned ViT.mlpackage --quantize int8 --activations int8 --calibrate pictures.npz

    Example: weighbridge export coreml Qwen3-8B Decoder.mlpackage --stateful --multifunction

    Example: weighbridge export coreml vit-tuned ViT.mlpackage --image pixel_values --labels config

    Example: weighbridge export coreml my_model:build Mine.mlpackage --inputs inputs.npz
    """
    prepare_mlx()
    from ..converters.coreml.vision import Vision
    from ..jobs.export import export_coreml as export_package
    from ..jobs.options import WriteOptions

    package, compute = package_of(chosen), chosen.pop("compute")
    compression = Compression(**{name: chosen.pop(name) for name in OF_WEIGHTS})
    vision = Vision(**{name: chosen.pop(name) for name in VISION})
    options, limits = options_of(WriteOptions, chosen), sizes_of(upper)
    ways: dict[str, Any] = {"upper": limits, "compression": compression, "package": package}
    ways["vision"] = vision
    outcome = export_package(source, target, compute=compute, **ways, options=options)
    finish(outcome, as_json=as_json, accept=accept)


def export_program(kind: str, source: str, target: Path, chosen: dict[str, Any]) -> None:
    """Export SOURCE to the program of KIND at TARGET, as CHOSEN on the command line."""
    prepare_mlx()
    from ..converters.captures.program_options import ProgramOptions
    from ..jobs.export import export_program as export_file
    from ..jobs.options import WriteOptions

    own = {name: chosen.pop(name) for name in OF_PROGRAMS if name in chosen}
    ways = ProgramOptions(chosen.pop("precision"), sizes_of(chosen.pop("upper")), **own)
    as_json, accept = chosen.pop("as_json"), chosen.pop("accept")
    options = options_of(WriteOptions, chosen)
    finish(
        export_file(kind, source, target, ways=ways, options=options),
        as_json=as_json,
        accept=accept,
    )


@export.command("onnx")
@programming
@click.option(
    "--opset", type=click.IntRange(18, 24), help="Version of the operators.  [default: 20]"
)
@click.option(
    "--external-data",
    is_flag=True,
    help="Write a folder: model.onnx, and its weights beside it. Of any size; one file has up to 2 GB.",
)
@click.option(
    "--quant-format",
    type=click.Choice(("QDQ", "QOperator"), case_sensitive=False),
    help="Of a quantized SOURCE: codes in DequantizeLinear, or in onnxruntime's MatMulNBits.  [default: QDQ]",
)
@writing
def export_onnx(source: str, target: Path, **chosen: Any) -> None:
    """Export SOURCE to TARGET.onnx with named inputs of any size, checked in onnxruntime.

    Example: weighbridge export onnx minilm-tuned minilm.onnx

    Example: weighbridge export onnx minilm-tuned minilm-onnx --external-data --precision fp16

    Example: weighbridge export onnx llama-4bit llama-4bit.onnx --quant-format QOperator
    """
    export_program("onnx", source, target, chosen)


@export.command("coreai")
@programming
@stateful
@writing
def export_coreai(source: str, target: Path, **chosen: Any) -> None:
    """Export SOURCE to TARGET.aimodel with named inputs of any size, checked in Core AI's own runtime.

    Example: weighbridge export coreai minilm-tuned minilm.aimodel

    Example: weighbridge export coreai Qwen3-8B Decoder.aimodel --stateful
    """
    export_program("coreai", source, target, chosen)


@export.command("gguf")
@click.argument("source", type=MODEL)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    required=True,
    metavar="BASE.gguf",
    help="The base model's file, downloaded or made by llama.cpp's convert_hf_to_gguf.py:"
    " metadata, tokenizer, names and types are taken from it.",
)
@click.option(
    "--base",
    type=MODEL,
    metavar="DIR",
    help="The base model's checkpoint: proves the names by values first.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(("F32", "F16", "BF16", "Q8_0", *OF_CODES)),
    help="Type of all matrices.  [default: as in BASE.gguf; of a quantized SOURCE what keeps it]",
)
@allow_lossy
@click.option(
    "--check",
    type=click.Choice(("quick", "full", "none")),
    default="quick",
    show_default=True,
    help="Read the file again, compare every number, and run it in llama.cpp where its binding llama_cpp is"
    " installed, on one small text or on all; or leave it UNVERIFIED.",
)
@original
@accepting
@publishing
def export_gguf(source: str, target: Path, as_json: bool, **chosen: Any) -> None:
    """Export SOURCE to TARGET.gguf: its tensors in a copy of BASE.gguf.

    A quantized SOURCE keeps its codes and scales: nothing is quantized again.

    Example: weighbridge export gguf tuned tuned.gguf --like base-f16.gguf --base base
    """
    prepare_mlx()
    from ..jobs.export_gguf import export_gguf as export_file
    from ..jobs.options import Options

    ways = {name: chosen.pop(name) for name in ("like", "base", "kind")}
    accept = chosen.pop("accept")
    outcome = export_file(source, target, options=options_of(Options, chosen), **ways)
    finish(outcome, as_json=as_json, accept=accept)
