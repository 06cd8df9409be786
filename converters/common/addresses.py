"""Addresses that ``ulimit -v`` must leave before anything is imported; only the standard library is used."""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from .exits import Exit

COMMAND: Final = 22_000_000  # bytes in which Python reads a command and reports errors
NUMPY: Final = 120_000_000  # the same with numpy, whose OpenBLAS ends the process if it finds none
THREAD: Final = 42_000_000  # for every further thread of OpenBLAS: a stack and a buffer
MOST_THREADS: Final = 64  # of OpenBLAS as numpy brings it
CHOSEN: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def too_few(need: int) -> str | None:
    """Return what to say if this process may have fewer than NEED bytes of addresses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= need:
        return None
    return (
        f"ulimit -v allows {limit / 1e6:.0f} MB of memory, and Python with its libraries needs"
        f" {need / 1e6:.0f} MB before any model is read; raise the limit (ulimit -v unlimited)"
    )


def for_verbs() -> int:
    """Return the bytes of addresses that every verb needs."""
    return 0 if "numpy" in sys.modules else NUMPY + THREAD * (threads() - 1)


def threads() -> int:
    """Return how many threads OpenBLAS will start."""
    there = os.cpu_count() or 1
    chosen = (os.environ.get(name, "") for name in CHOSEN)
    asked = next((int(it) for it in chosen if it.isdecimal() and int(it)), there)
    return min(asked, there, MOST_THREADS)


def refused(message: str) -> int:
    """Print MESSAGE without taking memory; return the exit code."""
    sys.stderr.write(f"Error: {message}\n")
    return Exit.FAILED
