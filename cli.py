"""The ``weighbridge`` command: parse, call, print. Everything heavy is imported inside the verbs."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from typing import Any

if not __package__:  # run as a file: relative imports cannot work, so say what does
    sys.exit(
        "Run it as a module: python -m weighbridge (after make install: .venv/bin/weighbridge)"
    )

from .converters.common.addresses import COMMAND, for_verbs, refused, too_few

if _shortage := too_few(COMMAND):  # later nothing could report it
    sys.exit(refused(_shortage))

if _plain := (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing reports Ctrl-C yet: it ends the process

import click

from . import __version__
from .converters.common.exits import exit_line
from .converters.common.users_code import telling_users_faults
from .errors import TooLittleMemoryError
from .verbs.adapters import merge
from .verbs.convert import convert
from .verbs.export import export
from .verbs.failures import reporting
from .verbs.inspect import doctor, inspect
from .verbs.map import map_group
from .verbs.parity import parity
from .verbs.progress import shown
from .verbs.quantize import quantize
from .verbs.signals import unwinding
from .verbs.stdout import keep_stdout
from .verbs.training.bench import bench
from .verbs.training.train import preflight, train

JSON = f"{__package__}.json"
CLICKS = (click.exceptions.Exit, click.Abort, click.ClickException)  # wherever it is installed


class Weighbridge(click.Group):
    """The root group: every failure, from the first word on, is reported by one mechanism."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether JSON is wanted, which errors of usage must know too."""
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[JSON] = "--json" in options
        with reporting(as_json=ctx.meta[JSON]):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        with reporting(as_json=ctx.meta[JSON]):
            if message := too_few(for_verbs()):
                raise TooLittleMemoryError(message)
        own = telling_users_faults(*CLICKS)
        with reporting(as_json=ctx.meta[JSON]), own, unwinding(), shown(ctx):
            return super().invoke(ctx)


@click.group(
    cls=Weighbridge,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exit_line(),
)
@click.version_option(__version__, "-V", "--version", package_name="weighbridge")
def main() -> None:
    """Move models between PyTorch, MLX and Core ML, and prove that nothing was lost."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its reports are in ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    gc.set_threshold(100_000)  # a checkpoint has that many headers, and none of them is garbage
    atexit.register(gc.freeze)  # nor is it worth a second to look for any in what ends anyway


for verb in (
    convert,
    quantize,
    map_group,
    merge,
    export,
    parity,
    train,
    bench,
    preflight,
    inspect,
    doctor,
):
    main.add_command(verb)
keep_stdout(main)
if _plain:
    signal.signal(signal.SIGINT, signal.default_int_handler)
