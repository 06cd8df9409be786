"""Commands timed side by side: in turns, each as a process of its own, with its peak memory."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

LAUNCHER = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
UNMEASURED = 2  # rounds; in the first ones the system finds memory for its cache
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes, of ru_maxrss


class Run(NamedTuple):
    """One process: seconds by the clock and of the processor, largest resident set in MB."""

    seconds: float
    processor: float
    megabytes: float


def cp(source: Path, target: Path) -> list[str]:
    """Return the command to compare with; blocks are copied, not shared."""
    flag = ["--reflink=never"] if sys.platform == "linux" else []
    return ["cp", *flag, "-r", str(source), str(target)]


def convert(direction: str, source: Path, target: Path, *options: str) -> list[str]:
    """Return the command that converts without a check; hashes are always taken."""
    tool = [sys.executable, "-m", "weighbridge", "convert", direction]
    return [*tool, str(source), str(target), "--check", "none", *options]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with bytecode in FOLDER, as installed packages have theirs."""
    found = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run(command: list[str], variables: Mapping[str, str]) -> Run:
    """Run COMMAND from a small launcher: a child's peak counts what its parent held at the fork."""
    answer = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    seconds, processor, peak = map(float, answer.stdout.split())
    return Run(seconds, processor, peak * PEAK_UNIT / 1e6)


def measure(commands: Mapping[str, list[str]], target: Path, repeat: int) -> dict[str, list[Run]]:
    """Run all COMMANDS in turns REPEAT times; each makes TARGET, which is removed again."""
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    variables = environment(target.parent)
    for number in range(-UNMEASURED, repeat):
        for name, command in commands.items():
            result = run(command, variables)
            shutil.rmtree(target)
            if number >= 0:
                runs[name].append(result)
    return runs


def summarise(runs: Mapping[str, list[Run]], nbytes: int) -> dict[str, Any]:
    """Return, by command, median seconds, ratio to ``cp``, processor time, peak and all times."""
    base = statistics.median(each.seconds for each in runs["cp"])
    commands = {
        name: {
            "seconds": round(statistics.median(each.seconds for each in found), 3),
            "ratio": round(statistics.median(each.seconds for each in found) / base, 2),
            "processor_seconds": round(statistics.median(each.processor for each in found), 3),
            "peak_megabytes": round(max(each.megabytes for each in found), 1),
            "all_seconds": [round(each.seconds, 3) for each in found],
        }
        for name, found in runs.items()
    }
    return {"gigabytes": round(nbytes / 1e9, 3), "commands": commands}


def machine() -> dict[str, Any]:
    """Return what the figures were measured on, without its name."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 1e9),
        "load_after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def show(title: str, result: Mapping[str, Any]) -> None:
    """Print RESULT, a line for each command."""
    print(f"{title}, {result['gigabytes']} GB")
    for name, found in result["commands"].items():
        times = found["all_seconds"]
        print(
            f"  {name:16} {found['seconds']:7.3f} s ({min(times):.3f} to {max(times):.3f})"
            f"  {found['ratio']:5.2f} x cp  {found['processor_seconds']:7.3f} s of processor"
            f"  peak {found['peak_megabytes']:6.1f} MB"
        )
