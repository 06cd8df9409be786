"""The verbs of ``weighbridge parity``: record a model's outputs, check another model against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..converters.common.exits import exit_line
from ..converters.common.policy import Policy
from .options import MODEL, accepting, as_json, candidate, opening, own_inputs
from .output import show_verdict
from .running import finish, options_of, prepare_mlx


@click.group()
def parity() -> None:
    """Record a model's outputs, and check another model against them."""


@parity.command("record")
@click.argument("model", type=MODEL)
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(("verdict", "blame")),
    default="verdict",
    show_default=True,
    help="Whether inner sites are recorded too.",
)
@click.option(
    "--force", is_flag=True, help="Replace TARGET, in one step, if Weighbridge wrote all of it."
)
@own_inputs
@opening
@as_json
def parity_record(model: str, target: Path, level: str, as_json: bool, **chosen: Any) -> None:
    """Record a golden of MODEL: inputs, float64 outputs, its own errors, sketches of its weights.

    Example: weighbridge parity record all-MiniLM-L6-v2 minilm-golden
    """
    prepare_mlx()
    from ..jobs.options import PublishOptions
    from ..jobs.parity import record

    options = options_of(PublishOptions, chosen)
    finish(record(model, target, level=level, options=options), as_json=as_json)


@parity.command("check", epilog=exit_line())
@click.argument("reference", type=MODEL)
@click.argument("candidate", type=MODEL)
@click.option(
    "--runtime",
    type=click.Choice(("torch", "mlx", "reference", "coreml")),
    help="Run CANDIDATE in this runtime.  [default: its own]",
)
@click.option(
    "--compute",
    type=click.Choice(("float32", "float16", "bfloat16")),
    default="float32",
    show_default=True,
    help="Precision of CANDIDATE's run.",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "gpu", "ane", "all")),
    default="cpu",
    show_default=True,
    help="Where CANDIDATE runs: a Core ML package, on a Mac. `ane` is the Neural Engine.",
)
@candidate
@own_inputs
@click.option("--quick", is_flag=True, help="Text side, fingerprints and one probe only.")
@accepting
@opening
@as_json
@click.pass_context
def parity_check(
    ctx: click.Context,
    /,
    reference: str,
    candidate: str,
    as_json: bool,
    accept: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Check CANDIDATE against REFERENCE.

    Either is a directory, DIRECTORY+ADAPTER, a .mlpackage, MODULE:FUNCTION, or (REFERENCE) a golden.

    Example: weighbridge parity check all-MiniLM-L6-v2 minilm-mlx --quick
    """
    prepare_mlx()
    from ..jobs.options import CheckOptions
    from ..jobs.parity import check

    verdict = check(
        reference,
        candidate,
        runtime=chosen["runtime"],
        policy=Policy(device=chosen["device"], compute=chosen["compute"]),
        options=CheckOptions(
            candidate_code=chosen["candidate_code"],
            inputs=chosen["inputs"],
            check="quick" if chosen["quick"] else "full",
            map=chosen["map_name"],
            trust_code=chosen["trust_code"],
        ),
    )
    show_verdict(verdict, as_json=as_json)
    ctx.exit(verdict.exit_code(accept))
