"""What the operating system refused, in one line: the path, the reason, what to do next."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

_ROOM: Final = "free some space or choose another disk"
_RIGHTS: Final = "change its permissions or choose another place"
_FILES: Final = "raise the limit of open files (ulimit -n), or close other programs"
_DISK: Final = "choose another disk, this one answers with errors"
_NETWORK: Final = "check the network and try again"

# What the machine may answer to a program without a fault; errors that name a file count all.
ADVICE: Final[Mapping[int, str]] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "choose another disk",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EIO: _DISK,
    errno.ENXIO: _DISK,
    errno.ENODEV: _DISK,
    errno.ESTALE: "the network disk lost the file; try again",
    errno.ENOMEM: "free some memory, or use a machine with more",
    errno.EAGAIN: "the system has no room for another process or thread; try again later",
    errno.EBUSY: "another program uses it; try again later",
    errno.ETXTBSY: "another program uses it; try again later",
    errno.ENOLCK: "the disk has no locks; choose another disk",
    errno.ENETUNREACH: _NETWORK,
    errno.EHOSTUNREACH: _NETWORK,
    errno.ECONNREFUSED: _NETWORK,
    errno.ECONNRESET: _NETWORK,
    errno.ETIMEDOUT: _NETWORK,
}
# What a path may be wrong with; without a path such an answer is a fault of ours.
OF_PATHS: Final[Mapping[int, str]] = {
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "a part of this path is a file; check the path",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "a link there leads to itself; remove it",
    errno.ENOTEMPTY: "something was put there meanwhile; look at it and try again",
    errno.EEXIST: "choose another name",
    errno.EXDEV: "both must lie on one disk; choose another place",
    errno.EINVAL: "the file system cannot do this; choose another disk",
    errno.EILSEQ: "the file system cannot take this name; choose another",
}


def explained(error: OSError, place: str | os.PathLike[str] | None = None) -> str | None:
    """Return ERROR as one line, about PLACE, else the file it names; ``None`` if it is a bug.

    An error with neither number nor file is no answer of the system, and a number that says nothing
    of files and resources (a bad descriptor, a child that is not there) is a fault of ours.

    >>> explained(OSError(errno.ENOSPC, "No space left on device", "big.bin"))
    'big.bin: No space left on device; free some space or choose another disk'
    >>> explained(OSError(errno.EBADF, "Bad file descriptor"))
    >>> explained(shutil.Error([("a", "b", "[Errno 28] No space left on device: 'a' -> 'b'")]))
    'b: No space left on device; free some space or choose another disk'
    """
    if isinstance(error, shutil.Error):
        error = _first_of(error)
    where = error.filename if place is None else place
    if error.errno is None or error.errno == errno.EPIPE:
        return None
    if where is None and error.errno not in ADVICE:
        return None
    todo = ADVICE.get(error.errno) or OF_PATHS.get(error.errno, "check it and try again")
    reason = error.strerror or os.strerror(error.errno)
    return f"{_named(where)}{reason}; {todo}"


def _first_of(error: shutil.Error) -> OSError:
    """Return the first error of those that copying a folder has gathered as texts."""
    for copied in error.args[0] if error.args and isinstance(error.args[0], list) else ():
        if found := re.match(r"\[Errno (\d+)\]", str(copied[2])):
            number = int(found[1])
            return OSError(number, os.strerror(number), str(copied[1]))
    return error


def _named(where: object) -> str:
    """Return the words before the reason; a file opened by its number has no name."""
    if isinstance(where, bytes):
        return f"{os.fsdecode(where)}: "
    return f"{where}: " if isinstance(where, str | os.PathLike) else ""
