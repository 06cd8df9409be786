"""Run a command line in a child and watch it: exit code, output, seconds, peak memory."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

LIMIT = 20.0  # seconds, then it hangs
TOO_MUCH = 2 << 30  # bytes; a child that takes so much is stopped
GLANCE = 0.05  # seconds between two looks at its memory
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
KEPT = 20_000  # characters of output


class Seen(NamedTuple):
    """What a child did.

    Attributes:
        code: exit code; minus the signal where one ended it.
        output: what it printed, both streams, the first characters.
        seconds: from fork to end.
        peak: bytes of memory at most, the warm parent's share included.
        stopped: why we ended it: ``hang`` or ``memory``; empty where it ended by itself.
    """

    code: int
    output: str
    seconds: float
    peak: int
    stopped: str


def in_child(job: Callable[[], int], folder: Path, places: dict[str, str], *, limit=LIMIT) -> Seen:
    """Fork, run JOB in FOLDER with the environment PLACES, and watch."""
    with tempfile.TemporaryFile() as printed:
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            become(printed.fileno(), folder, places)
            finish(job)
        stopped, status, usage = watched(pid, begin, limit)
        seconds = time.monotonic() - begin
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    peak = usage.ru_maxrss * UNIT
    return Seen(os.waitstatus_to_exitcode(status), output, seconds, peak, stopped)


def become(output: int, folder: Path, places: dict[str, str]) -> None:
    """Turn this process into one that a shell might have started."""
    os.setsid()
    atexit._clear()
    null = os.open(os.devnull, os.O_RDONLY)
    for wanted, handle in enumerate((null, output, output)):
        os.dup2(handle, wanted)
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.update(places)
    tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def finish(job: Callable[[], int]) -> NoReturn:
    """End this process as JOB says, whatever happens in it."""
    code = 99
    try:
        code = job()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()  # coremltools removes its copies there
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def watched(pid: int, begin: float, limit: float) -> tuple[str, int, resource.struct_rusage]:
    """Wait for PID, and end it where it takes too long or too much."""
    stopped, pause, glance = "", 0.001, begin + GLANCE
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return stopped, status, usage
        now = time.monotonic()
        if not stopped and now - begin > limit * share():
            stopped = "hang"
        elif not stopped and now > glance:
            stopped = "memory" if memory(pid) > TOO_MUCH else ""
            glance = now + GLANCE
        if stopped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)


def share() -> float:
    """Return by how much others make this machine slower: seconds are those of one that is free."""
    return max(1.0, os.getloadavg()[0] / (psutil.cpu_count() or 1))


def memory(pid: int) -> int:
    """Return the bytes that PID has in memory."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def verb(argv: Sequence[str]) -> Callable[[], int]:
    """Return a job that runs the command line ARGV in this process."""

    def job() -> int:
        from weighbridge.cli import main

        sys.argv = ["weighbridge", *argv]
        main(list(argv), prog_name="weighbridge")
        return 0

    return job


def in_shell(argv: Sequence[str], folder: Path, places: dict[str, str], root: Path) -> Seen:
    """Run ARGV in a process of its own, started as a shell starts one, and watch."""
    from .warm import ENVIRONMENT

    path = os.pathsep.join(map(str, (*sys.path, root)))
    environment = {**os.environ, **ENVIRONMENT, **places, "PYTHONPATH": path}
    command = [sys.executable, "-m", "weighbridge", *argv]
    with tempfile.TemporaryFile() as printed:
        begin = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        stopped, status, usage = watched(process.pid, begin, LIMIT)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begin
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    return Seen(process.returncode, output, seconds, usage.ru_maxrss * UNIT, stopped)
