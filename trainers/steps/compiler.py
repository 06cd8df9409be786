"""Whether MLX can compile on this machine, and what of an update: on Linux its CPU kernels need a C++ compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

import mlx.core as mx

FIRST_BROKEN: Final = (
    13  # g++ versions from here on reject the header that MLX puts before a kernel
)
# What compiling an optimizer's update saves on a CPU (AdamW: 6 million values in 53 tensors take 70 ms less,
# 131 thousand in 28 tensors 5 ms), and what its kernels take to compile on a busy machine.
A_VALUE: Final = 11e-9  # seconds
A_TENSOR: Final = 140e-6
COMPILING: Final = 10.0


def optimizer_pays(sizes: Sequence[int], updates: int) -> bool:
    """Return whether a CPU saves more in UPDATES of tensors of SIZES than compiling the optimizer's update takes.

    >>> optimizer_pays([6_000_000], 100), optimizer_pays([6_000_000], 1000), optimizer_pays([4096], 1000)
    (False, True, False)
    """
    saved = updates * (A_VALUE * sum(sizes) + A_TENSOR * len(sizes))
    return saved > COMPILING and compile_problem() is None and _compiles()


@cache
def _compiles() -> bool:
    """Return whether MLX compiles a small function for its CPU: its temporary folder may not be writable."""
    double = mx.compile(lambda number: mx.exp(number) * 2)
    try:
        mx.eval(double(mx.zeros(1)))
    except RuntimeError:
        return False
    return True


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
