"""Whether MLX can compile on this machine: on Linux its CPU kernels need a C++ compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from typing import Final

FIRST_BROKEN: Final = (
    13  # g++ versions from here on reject the header that MLX puts before a kernel
)


@cache
def compile_problem() -> str | None:
    """Return why MLX cannot compile for the CPU here, or ``None`` where it can."""
    if sys.platform != "linux":
        return None
    compiler = shutil.which("g++")
    if compiler is None:
        return "g++ is not installed"
    done = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=False)  # noqa: S603
    return judge_version(done.stdout)


def judge_version(text: str) -> str | None:
    """Return why the g++ that prints TEXT as its version cannot be used, or ``None``.

    >>> judge_version("12"), judge_version("13.2.0")
    (None, 'g++ 13 is too new for MLX; g++ 12 works')
    """
    version = re.match(r"\d+", text)
    if version is None:
        return "g++ does not say which version it is"
    major = int(version[0])
    return f"g++ {major} is too new for MLX; g++ 12 works" if major >= FIRST_BROKEN else None
