"""Bundles of command-line options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import BadInputError

DESTINATIONS = ("vllm", "mlx-lm", "mlx-swift", "llama.cpp")  # converters.adapters.destinations
# quantization.formats.registry
QUANT_METHODS = ("metal", "compressed-tensors", "gptq", "awq", "mxfp4", "fp8", "bitnet")
LEVELS = ("PASS-PRECISION-ONLY", "UNVERIFIED", "UPSTREAM")
EXTRAS = {
    "torch": ("torch", "transformers", "tokenizers"),
    "mlx": ("mlx", "numba"),
    "coreml": ("coremltools",),
    "gguf": ("gguf",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "coreai": ("coreai", "coreai_torch"),
    "dev": ("peft",),
    "train": ("matplotlib", "pydantic", "yaml"),
}
BY_TABLE = ("convert", "merge")  # verbs that do with the core alone all but the check
Command = TypeVar("Command", bound=Callable[..., Any])


class Source(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A model or an adapter: a path, or a repository of the hub, which becomes one."""

    name = "path"

    def __init__(self, kind: type[str] | type[Path] = str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Return VALUE as a path of the wanted kind."""
        from ..converters.common.repositories import local

        return self.kind(local(str(value)))


MODEL, ADAPTER = Source(), Source(Path)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return what adds all OPTIONS to a verb, the first one uppermost in its help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
candidate = click.option(
    "--candidate-code",
    metavar="MODULE:FUNCTION",
    help="Like --trust-code, for the checked side alone: a native mlx.nn module.",
)
own_inputs = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Your own inputs, one array per input; several probes are named PROBE/INPUT. Of a MODULE:FUNCTION"
    " they say what it takes: sizes that are not equal in all probes vary.",
)
opening = together(
    click.option("--map", "map_name", metavar="FILE.wmap", help="Map between torch and MLX names."),
    click.option(
        "--trust-code",
        metavar="MODULE:FUNCTION",
        help="Run this function to build an architecture that has no known model_type.",
    ),
)
shards = click.option(
    "--max-shard-size",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="GB",
    help="Size of a weights file.",
)
original = click.option(
    "--original",
    type=MODEL,
    metavar="DIR|HUB-NAME|none",
    help="Where the model comes from: has what MLX's classes drop, such as a vision tower.",
)
dequantize = click.option(
    "--dequantize",
    type=click.Choice(("bf16", "fp16", "fp32")),
    help="SOURCE is quantized: make its weights dense, each rounded once to this dtype.",
)
quant_method = click.option(
    "--quant-method",
    type=click.Choice(QUANT_METHODS),
    help="SOURCE is quantized: write this format of Hugging Face.  [default: one that loses nothing]",
)
allow_lossy = click.option(
    "--allow-lossy",
    is_flag=True,
    help="Let quantized weights move where the format of TARGET cannot hold them, and say how far.",
)
gguf_to_torch = together(dequantize, quant_method, allow_lossy)
to_torch = together(original, dequantize, quant_method, allow_lossy)
sidecar = click.option(
    "--sidecar",
    type=click.Choice(("small", "all", "none")),
    default="small",
    show_default=True,
    help="Tensors to keep for an exact conversion back: those up to 1 MiB, or all it may need.",
)
quantize = click.option(
    "--quantize",
    metavar="SCHEME",
    help="Quantize on the way: 4, 4:64 (bits and group), mxfp4; see weighbridge quantize for more.",
)
repair = click.option(
    "--repair",
    is_flag=True,
    help="Write a model file too that mends what the class of mlx-lm (load it with trust_remote_code), mlx-vlm or mlx-embeddings (inspect prints how to load it) computes wrongly.",
)
library = click.option(
    "--library",
    type=click.Choice(("mlx-lm", "mlx-embeddings", "mlx-vlm")),
    help="Whose class is to read TARGET.  [default: one that has the towers of SOURCE, if it has any]",
)
to_mlx = together(sidecar, dequantize, quantize, repair, library)
trained_on = click.option(
    "--trained-on",
    type=MODEL,
    metavar="DIR",
    help="The quantized model that the adapter was trained on: proves that BASE is its original.",
)
destined = click.option(
    "--for",
    "destination",
    type=click.Choice(DESTINATIONS),
    help="Keep the limits of this program, and say the command to run next.",
)
accepting = click.option(
    "--accept",
    type=click.Choice(LEVELS, case_sensitive=False),
    multiple=True,
    help="Let this verdict exit 0 too; UPSTREAM: what differs only by a fault of the library's class.",
)
publishing = together(  # what a verb makes in one step, or not at all
    opening,
    as_json,
    click.option(
        "--force",
        is_flag=True,
        help="Replace TARGET, in one step, if Weighbridge wrote all of it.",
    ),
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
)
writing = together(  # a model, which is then checked
    publishing,
    click.option(
        "--check",
        type=click.Choice(("quick", "full", "none")),
        default="quick",
        show_default=True,
        help="How to check the result; with none it is UNVERIFIED and the exit code 0.",
    ),
    candidate,
    accepting,
)


def print_settings(ctx: click.Context, _: click.Parameter, word: str | None) -> None:
    """Print every setting whose name has WORD in it, as ``--set`` takes it, and end."""
    if word is None or ctx.resilient_parsing:
        return
    from ..trainers.config import TrainConfig
    from ..trainers.configuration.reference import settings

    every = settings(TrainConfig)
    found = [it for it in every if word in it.key]
    if not found:
        near = get_close_matches(word, [it.key for it in every], 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else "--settings alone lists all"
        raise BadInputError(f"no setting has {word!r} in its name: {hint}")
    for it in found:
        click.echo(f"--set {it.key}={it.default}")
        if it.meaning:
            click.echo(click.wrap_text(it.meaning, 100, "    ", "    "))
    ctx.exit()


configured = together(
    as_json,
    click.option(
        "--recipe",
        "--config",
        "recipe",
        type=click.Path(path_type=Path),
        metavar="NAME|FILE",
        help="A recipe by name, or your own YAML or TOML file.  [default: docstrings]",
    ),
    click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override one setting, such as optimizer.learning_rate=3e-4.",
    ),
    click.option(
        "--settings",
        is_flag=False,
        flag_value="",
        metavar="[WORD]",
        is_eager=True,
        expose_value=False,
        callback=print_settings,
        help="List all settings with their defaults, or those with WORD in their names, and end.",
    ),
)


LONGEST_SIZE = 9  # digits


def parse_size(item: str, size: str) -> int:
    """Parse the SIZE of ``DIMENSION=SIZE``."""
    if not (size.isdecimal() and len(size) <= LONGEST_SIZE and int(size)):
        raise click.BadParameter(
            f"{item!r} is not DIMENSION=SIZE with a size from 1, such as sequence=256"
        )
    return int(size)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return which extra brings the package that ERROR misses; ``None`` if none does."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    context = click.get_current_context(silent=True)
    verb = context.find_root().invoked_subcommand if context else None
    otherwise = (
        " (by a table alone nothing more is needed: --check none)" if verb in BY_TABLE else ""
    )
    return f"this needs {package}: pip install 'weighbridge[{extra}]'{otherwise}"
