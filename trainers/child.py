"""Work done in a process of its own, whose memory is that of this work alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final, TypeVar

from ..converters.runtimes.blas import preload_blas
from ..errors import TooLittleMemoryError

Found = TypeVar("Found")
THREADS: Final = (  # of OpenMP, which the others follow; they read it when they are loaded
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def in_child(work: Callable[..., Found], *given: Any) -> Found:
    """Return what WORK returns for what is GIVEN, from a new process that MLX has a fast BLAS in.

    Raises:
        TooLittleMemoryError: the process was ended from outside.
        Exception: what WORK raised.
    """
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), preload_blas) as pool:
            return pool.submit(work, *given).result()
    except BrokenProcessPool as error:
        raise TooLittleMemoryError(
            "the process was ended, most likely for want of memory"
        ) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Let processes started in the block multiply with one thread, or as many as ``OMP_NUM_THREADS`` says.

    Threads that wait for each other take processor time, and on a busy machine they wait long.
    """
    wanted = os.environ.get(THREADS[0], "1")
    given = {name: wanted for name in THREADS if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
