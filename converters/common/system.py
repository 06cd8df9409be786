"""System calls that Python does not offer, each with a plain answer where it is missing."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from ...errors import WeighbridgeError
from .os_errors import explained

PIECE: Final = 1 << 17  # bytes written at a time: a megabyte took ext4 twice the processor time
EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2(2), RENAME_SWAP of renamex_np(2)
_HERE: Final = -100  # AT_FDCWD of Linux
_MISSING: Final = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a failure of the disk that holds PLACE into one line.

    Raises:
        WeighbridgeError: the disk is full or refuses.
    """
    try:
        yield
    except OSError as error:
        if (line := explained(error, place)) is None:
            raise
        raise WeighbridgeError(f"cannot write {line}") from error


def require_space(place: Path, size: int) -> None:
    """Refuse to write SIZE bytes to PLACE, whose disk has fewer left: for writers that a full disk would kill.

    Raises:
        WeighbridgeError: it has.
    """
    with writing(place):
        if shutil.disk_usage(place.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))


def write_all(file: IO[bytes], data: memoryview) -> None:
    """Write DATA, bytes, to the unbuffered FILE; the system may take less than it is given."""
    done = 0
    while done < len(data):
        done += file.write(data[done : done + PIECE])


def exchange(first: Path, second: Path) -> bool:
    """Swap two paths of one file system atomically; False where the system cannot.

    Raises:
        OSError: the system can, but not with these paths.
    """
    names = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        return _call("renamex_np", *names, ctypes.c_uint(EXCHANGE))
    return _call("renameat2", _HERE, names[0], _HERE, names[1], ctypes.c_uint(EXCHANGE))


def reserve(descriptor: int, size: int) -> bool:
    """Reserve SIZE bytes for the open file DESCRIPTOR; False where the file system cannot.

    ``os.posix_fallocate`` will not do: where the file system cannot, it writes every block.

    Raises:
        OSError: the disk is full, or the file would be too large for the file system.
    """
    if size == 0 or sys.platform != "linux":
        return False
    return _call("fallocate", descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size))


@cache
def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def _call(name: str, *arguments: object) -> bool:
    """Call the C function NAME, which returns 0 on success; False if it is not to be had here."""
    function = _function(name)
    if function is None:
        return False
    if function(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in _MISSING:
        return False
    raise OSError(code, os.strerror(code))
