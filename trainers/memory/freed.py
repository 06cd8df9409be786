"""What a process frees and keeps for its next arrays: on Linux glibc's to decide, and told here."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

TRIM, TOP_PAD, MMAP = -1, -2, -3  # of malloc.h
LARGE: Final = 1 << 25  # bytes of an array that goes back to the system whenever it is freed
KEPT: Final = {TRIM: 2**31 - 1, TOP_PAD: 1 << 26, MMAP: LARGE}
AS_USUAL: Final = {TRIM: 2 * LARGE, TOP_PAD: 1 << 17, MMAP: LARGE}  # as glibc's own come to be


@contextmanager
def kept(wanted: bool = True) -> Iterator[None]:
    """Let the process keep what it frees for its next arrays in the block, if that is WANTED; glibc alone is told.

    By its defaults memory of arrays is given back to the system and taken again, or not, by the order in which
    they are freed, and updates alike take other times. Behind the block all goes back.
    """
    library = _glibc() if wanted else None
    _tell(library, KEPT)
    try:
        yield
    finally:
        _tell(library, AS_USUAL)
        if library:
            give_back()


def give_back() -> None:
    """Give back to the system what was freed, so that what is in use can be read."""
    if library := _glibc():
        library.malloc_trim(0)


def _tell(library: Any, options: dict[int, int]) -> None:
    for option, size in options.items() if library else ():
        library.mallopt(option, size)


@cache
def _glibc() -> Any:
    """Return the C library of this process where it is glibc."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        return ctypes.CDLL(None)
    return None
