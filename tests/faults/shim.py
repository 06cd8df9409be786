"""The library of ``shim.c``: compiled on first use, preloaded, and armed by number."""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
LINES, WIDTH = 1 << 14, 160


class Kind(enum.IntFlag):
    """What a call changes."""

    WRITE = 1
    CREATE = 2
    RENAME = 4
    REMOVE = 8
    SYNC = 16
    RESIZE = 32
    CLOSE = 64


class Action(enum.IntEnum):
    """What happens at the n-th call."""

    COUNT = 0
    KILL = 1  # before it
    TORN = 2  # after half of it
    FAIL = 3
    SHORT = 4  # half is written, as a signal may have it
    HALF = 5  # half is written, the rest fails
    STOP = 6  # it waits until something else has been done


ANY = ~Kind(0)
GROWING = Kind.WRITE | Kind.CREATE | Kind.SYNC | Kind.RESIZE | Kind.CLOSE  # take room on a disk
FAILING = GROWING | Kind.RENAME


class Fault(NamedTuple):
    """One thing that goes wrong.

    Attributes:
        at: number of the call, from 0.
        action: what happens there.
        code: the ``errno`` where it fails.
        kinds: calls that can fail.
        sticky: calls of these KINDS fail from then on; else the n-th alone.
    """

    at: int
    action: Action = Action.KILL
    code: int = errno.ENOSPC
    kinds: Kind = ANY
    sticky: bool = False

    def __str__(self) -> str:
        how = self.action.name.lower()
        why = f" {errno.errorcode[self.code]}" if self.action in (Action.FAIL, Action.HALF) else ""
        return f"{how}{why} {'from' if self.sticky else 'at'} {self.at}"


NOTHING = Fault(-1, Action.COUNT)


class _Shared(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_long),
        ("fired", ctypes.c_long),
        ("lines", ctypes.c_char * WIDTH * LINES),
    )


class Shim:
    """The preloaded library in this process; its counters are shared with children."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_share.restype = ctypes.POINTER(_Shared)
        self._shared = self._library.faults_share().contents

    def arm(self, roots: Sequence[str], fault: Fault) -> None:
        """Count what is done under ROOTS in this process, and let FAULT happen."""
        where = "\n".join(map(os.path.realpath, roots)).encode()
        at, action, code, kinds, sticky = fault
        self._library.faults_arm(
            where, ctypes.c_long(at), int(action), code, int(kinds) & 0x7F, int(sticky)
        )

    def reset(self) -> None:
        """Forget what was counted."""
        self._shared.count = self._shared.fired = 0

    @property
    def count(self) -> int:
        """Return how many calls there were."""
        return int(self._shared.count)

    @property
    def fired(self) -> int:
        """Return at how many of them something happened."""
        return int(self._shared.fired)

    def calls(self) -> list[str]:
        """Return the calls, ``KIND NAME PATH`` each."""
        return [self._shared.lines[n].value.decode() for n in range(min(self.count, LINES))]


def missing() -> str:
    """Say why there can be no faults here; empty where there can."""
    if sys.platform != "linux":
        return "faults are injected through LD_PRELOAD, on Linux"
    return "" if shutil.which("cc") else "no C compiler (cc) to make the faults with"


def compiled(folder: Path) -> Path:
    """Return the library, compiled into FOLDER."""
    library = folder / "faults.so"
    if not library.exists():
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
    return library
