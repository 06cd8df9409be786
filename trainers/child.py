"""Work done in a process of its own, whose memory is that of this work alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from ..converters.runtimes.blas import preload_blas
from ..errors import TooLittleMemoryError

Found = TypeVar("Found")


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
