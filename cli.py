"""The ``weighbridge`` command: parse, call, print. Everything heavy is imported inside the verbs."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: relative imports cannot work, so say what does
    sys.exit(
        "Run it as a module: python -m weighbridge (after make install: .venv/bin/weighbridge)"
    )

from .converters.common.addresses import COMMAND, for_verbs, refused, too_few

if _said := too_few(COMMAND):  # nothing could tell of it later
    sys.exit(refused(_said))

import click

from . import __version__
from .converters.common.exits import Exit, promise
from .converters.common.users_code import telling_users_faults
from .converters.routes import CONVERSIONS, Route
from .errors import TooLittleMemoryError
from .verbs import adapters as adapter_verbs
from .verbs.export import export
from .verbs.failures import told
from .verbs.maps import map_group
from .verbs.options import (
    ADAPTER,
    MODEL,
    accepting,
    as_json,
    candidate,
    configured,
    going_home,
    leaving,
    opening,
    own_inputs,
    shards,
    writing,
)
from .verbs.progress import shown
from .verbs.running import finish, options_of, prepare_mlx
from .verbs.signals import unwinding
from .verbs.stdout import keep_stdout

JSON = f"{__package__}.json"


class Weighbridge(click.Group):
    """The root group: every failure, from the first word on, is told by one mechanism."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether JSON is wanted, which errors of usage must know too."""
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[JSON] = "--json" in options
        with told(as_json=ctx.meta[JSON]):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        with told(as_json=ctx.meta[JSON]):
            if said := too_few(for_verbs()):
                raise TooLittleMemoryError(said)
        with told(as_json=ctx.meta[JSON]), telling_users_faults(), unwinding(), shown(ctx):
            return super().invoke(ctx)


@click.group(
    cls=Weighbridge,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=promise(),
)
@click.version_option(__version__, "-V", "--version", package_name="weighbridge")
def main() -> None:
    """Move models between PyTorch, MLX and Core ML, and prove that nothing was lost."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its reports are in ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    gc.set_threshold(100_000)  # a checkpoint has that many headers, and none of them is garbage


@main.group()
def convert() -> None:
    """Convert weights from one framework to another."""


def add_conversion(route: Route) -> None:
    """Add the verb of ROUTE to ``convert``."""

    @convert.command(route.verb.split()[1], help=route.help, short_help=route.summary)
    @click.argument("source", type=MODEL)
    @click.argument("target", type=click.Path(path_type=Path))
    @click.option("--adapter", type=ADAPTER, help="Merge this LoRA adapter on the way.")
    @(going_home if route.target == "torch" else leaving)
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
        from . import jobs

        outcome = jobs.convert(
            source, target, route.target, adapter=adapter, options=options_of(chosen)
        )
        finish(outcome, as_json=as_json, accept=accept)


for _route in CONVERSIONS:
    add_conversion(_route)
for _verb in adapter_verbs.CONVERSIONS:
    convert.add_command(_verb)
for _command in (map_group, adapter_verbs.merge, export):
    main.add_command(_command)


@main.group()
def parity() -> None:
    """Weigh two models against each other."""


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
    from . import jobs

    finish(
        jobs.record(model, target, level=level, options=options_of(chosen)),
        as_json=as_json,
    )


@parity.command("check", epilog=promise())
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
    """Weigh CANDIDATE against REFERENCE.

    Either is a directory, DIRECTORY+ADAPTER, a .mlpackage, MODULE:FUNCTION, or (REFERENCE) a golden.

    Example: weighbridge parity check all-MiniLM-L6-v2 minilm-mlx --quick
    """
    prepare_mlx()
    from .converters.common.policy import Policy
    from .jobs import Options, check
    from .verbs.output import show_verdict

    verdict = check(
        reference,
        candidate,
        runtime=chosen["runtime"],
        policy=Policy(compute=chosen["compute"]),
        options=Options(
            candidate_code=chosen["candidate_code"],
            inputs=chosen["inputs"],
            check="quick" if chosen["quick"] else "full",
            map=chosen["map_name"],
            trust_code=chosen["trust_code"],
        ),
    )
    show_verdict(verdict, as_json=as_json)
    ctx.exit(verdict.exit_code(accept))


@main.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(("mlx", "torch")),
    default="mlx",
    show_default=True,
    help="Framework that trains.",
)
@click.option("--resume", is_flag=True, help="Go on where the run in TARGET stopped.")
@configured
def train(
    target: Path,
    backend: str,
    resume: bool,
    config_path: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a model, writing adapters, checkpoints and metrics to TARGET.

    Example: weighbridge train run --backend mlx --config minilm-lora --set model=minilm-mlx
    """
    prepare_mlx()
    from .jobs import train as run_training
    from .verbs.output import show_training

    show_training(
        run_training(target, backend, config_path, overrides, resume=resume), as_json=as_json
    )


@main.command()
@configured
@click.pass_context
def preflight(
    ctx: click.Context, config_path: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Compare loss and every gradient on the first batch, MLX against PyTorch.

    Example: weighbridge preflight --config minilm-lora --set model=all-MiniLM-L6-v2
    """
    prepare_mlx()
    from .jobs import preflight as run_preflight
    from .verbs.output import show_preflight

    result = run_preflight(config_path, overrides)
    show_preflight(result, as_json=as_json)
    ctx.exit(Exit.DONE if result.ok else Exit.DIFFERENT)


@main.command()
@click.argument("path", type=MODEL)
@opening
@as_json
def inspect(path: str, as_json: bool, **chosen: Any) -> None:
    """Say what PATH is, what it holds, and what can be done with it.

    Example: weighbridge inspect minilm-mlx
    """
    from .jobs.inspecting import inspect_spec
    from .verbs.output import show_facts

    show_facts(inspect_spec(path, **chosen), as_json=as_json)


@main.command()
@as_json
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what is installed and which routes run on this machine."""
    from .jobs.inspecting import examine_machine
    from .verbs.output import show_facts

    facts = examine_machine()
    show_facts(facts, as_json=as_json)
    ctx.exit(Exit.DIFFERENT if facts["problems"] else Exit.DONE)


keep_stdout(main)
