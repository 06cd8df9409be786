"""Locks of folders, so that two runs do not write to one target; they end with the process."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...errors import WeighbridgeError

# Some network file systems have no locks; that is no reason not to write there.
_NO_LOCKS: Final = frozenset((errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of FOLDER within the block.

    Raises:
        WeighbridgeError: another run holds it.
    """
    descriptor = lock(folder, folder)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(folder: Path, target: Path) -> int:
    """Lock FOLDER for the run that writes TARGET; closing the descriptor returned unlocks it.

    Raises:
        FileNotFoundError: FOLDER is not there, or was removed meanwhile.
        WeighbridgeError: another run holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _take(descriptor, target)
        _require_there(descriptor, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_there(descriptor: int, folder: Path) -> None:
    if not os.path.samestat(os.fstat(descriptor), folder.stat()):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _take(descriptor: int, target: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise WeighbridgeError(
            f"another run is writing {target}; wait for it or choose another name"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
