"""A warm process that runs commands in forked children, each with a fault of its own.

Run as a program it is that process: everything is imported once, a line of JSON on stdin is one
command, and a line of JSON on stdout says what became of it. ``Server`` is its other end.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.tests.faults.shim import NOTHING, Action, Fault, Kind, Shim, compiled

LIMIT = 300.0  # seconds
CONTINUE = signal.SIGCONT
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # a fork keeps only one
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "MLX_DISABLE_COMPILE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
WARM = (
    "accelerate",
    "coremltools",
    "gguf",
    "matplotlib.pyplot",
    "mlx_lm.utils",
    "peft",
    "torch._dynamo",
    "torch._inductor",
    "torch.export",
    "torch.onnx",
    "transformers.generation",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "weighbridge.cli",
    "weighbridge.verbs.output",
)
PARTS = ("converters", "jobs", "parity", "trainers", "verbs")
ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        code: the exit code, or minus the signal that ended it.
        output: what it said on stdout and stderr.
        count: counted calls.
        fired: at how many of them the fault happened.
        calls: ``KIND NAME PATH`` of each.
        meanwhile: how the command ended that was given while it stood still.
    """

    code: int
    output: str
    count: int
    fired: int
    calls: list[str]
    meanwhile: Ended | None = None

    @property
    def killed(self) -> bool:
        """Tell whether ``kill -9`` ended it."""
        return self.code == -signal.SIGKILL


class Server:
    """The other end of a warm process; a context manager."""

    def __init__(self, folder: Path, variables: dict[str, str] | None = None) -> None:
        environment = os.environ | QUIET | dict.fromkeys(THREADS, "1") | (variables or {})
        environment["WEIGHBRIDGE_CACHE"] = str(folder / "cache")  # maps are learned once
        environment["LD_PRELOAD"] = str(compiled(folder))
        environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT.parent, ROOT)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(
        self,
        command: Sequence[str],
        roots: Sequence[Path] = (),
        fault: Fault = NOTHING,
        **more: Any,
    ) -> Ended:
        """Run COMMAND in a new child; see ``_attempt`` for MORE."""
        request = {"command": [str(word) for word in command], "roots": [str(r) for r in roots]}
        self._process.stdin.write(json.dumps(request | {"fault": fault} | more) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the warm process ended with {self._process.wait()}")
        return _ended(json.loads(answer))


def _ended(answer: list[Any]) -> Ended:
    *facts, meanwhile = answer
    return Ended(*facts, meanwhile and _ended(meanwhile))


def serve() -> None:
    """Answer requests until stdin ends."""
    from importlib import import_module

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_module("weighbridge.converters.runtimes.blas").preload_blas()
    for name in WARM:
        import_module(name)
    for part in PARTS:
        package = import_module(f"weighbridge.{part}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(found.name)
    gc.freeze()  # else every child copies what it looks through for garbage
    shim = Shim()
    for line in sys.stdin:
        answers.write(json.dumps(_attempt(shim, **json.loads(line))) + "\n")
        answers.flush()


def _attempt(
    shim: Shim,
    command: list[str],
    roots: list[str],
    fault: list[Any],
    *,
    cwd: str = str(ROOT),
    variables: dict[str, str] | None = None,
    kill_after: tuple[int, float] | None = None,
    meanwhile: dict[str, Any] | None = None,
) -> Ended:
    """Run COMMAND in a child.

    Args:
        shim: counts.
        command: arguments of ``weighbridge``.
        roots: folders that are watched.
        fault: what goes wrong there.
        cwd: the working directory.
        variables: changes of the environment.
        kill_after: kill it so many counted calls and then so many seconds after its start.
        meanwhile: done while it stands still: a ``command``, a file whose last
            byte to ``flip``, or a ``signal`` to send.
    """
    reading, writing = os.pipe()
    shim.reset()
    child = os.fork()
    if not child:
        os.close(reading)
        _redirect(writing)
        os.chdir(cwd)
        os.environ.update(variables or {})
        at, action, code, kinds, sticky = fault
        shim.arm(roots, Fault(at, Action(action), code, Kind(kinds & 0x7F), sticky))
        os._exit(_main(command))
    os.close(writing)
    os.set_blocking(reading, False)
    watched = Watched(shim, child, reading)
    code = watched.wait(kill_after, meanwhile or {})
    return Ended(code, watched.said.decode(errors="replace"), *watched.counted(), watched.meanwhile)


def flip_last_byte(path: Path) -> None:
    """Change the file at PATH; the second time it is as it was."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def _redirect(writing: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in (1, 2):
        os.dup2(writing, descriptor)
    os.close(writing)


def _main(command: list[str]) -> int:
    """Run COMMAND as the program does; return its exit code."""
    from weighbridge.cli import main

    try:
        main(command, prog_name="weighbridge")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()  # as at the end of a process: a fork ends without
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


class Watched:
    """A child under way."""

    def __init__(self, shim: Shim, child: int, reading: int) -> None:
        self._shim, self._child, self._reading = shim, child, reading
        self._counted: tuple[int, int, list[str]] | None = None
        self.said = b""
        self.meanwhile: Ended | None = None

    def wait(self, kill_after: tuple[int, float] | None, meanwhile: dict[str, Any]) -> int:
        """Wait for the child, killing it when it is time; return its exit code."""
        end, moment = time.monotonic() + LIMIT, None
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED)
            self._read()
            if ended and not os.WIFSTOPPED(status):
                os.close(self._reading)
                return os.waitstatus_to_exitcode(status)
            if ended:
                self._while_stopped(**meanwhile)
            now = time.monotonic()
            if kill_after and moment is None and self._shim.count >= kill_after[0]:
                moment = now + kill_after[1]
            if (moment is not None and now >= moment) or now > end:
                os.kill(self._child, signal.SIGKILL)
            time.sleep(0.0005 if kill_after else 0.005)  # a look costs, too

    def counted(self) -> tuple[int, int, list[str]]:
        """Return what was counted in the child; until it stood still, if it did."""
        return self._counted or (self._shim.count, self._shim.fired, self._shim.calls())

    def _while_stopped(
        self, command: list[str] | None = None, flip: str = "", signal: int = 0
    ) -> None:
        self._counted = self.counted()
        if command:
            self.meanwhile = _attempt(self._shim, command, [], list(NOTHING))
        if flip:
            flip_last_byte(Path(flip))
        if signal:
            os.kill(self._child, signal)
        os.kill(self._child, CONTINUE)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._reading, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                return
            self.said += piece


if __name__ == "__main__":
    serve()
