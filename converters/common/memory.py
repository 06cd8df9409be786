"""Memory: how much there is, and what tells that there was too little."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import BadInputError

VARIABLE: Final = "WEIGHBRIDGE_MEMORY"  # gigabytes to count on, whatever the system reports
MAPPED: Final = 600_000_000  # bytes of addresses that torch, MLX and transformers never touch
CGROUP: Final = Path("/sys/fs/cgroup")
# What libraries write in errors of their own: torch, MLX, C++, the loader of shared libraries.
_MESSAGES: Final = re.compile(
    r"can't allocate memory|cannot allocate memory|unable to allocate|\[malloc|bad_?alloc"
    r"|out of memory|failed to map segment|can't start new thread",
    re.IGNORECASE,
)
_NAMELESS: Final = "error return without exception set"  # of an import that found no memory


class Room(NamedTuple):
    """Memory that a job may take.

    Attributes:
        free: bytes that there are now.
        limit: bytes that can be had at most, whatever other programs give back.
        set_by: what sets the limit.
    """

    free: int
    limit: int
    set_by: str


def room() -> Room:
    """Return the memory that this process may still take.

    Raises:
        BadInputError: ``WEIGHBRIDGE_MEMORY`` is no number.
    """
    import psutil

    if chosen := os.environ.get(VARIABLE):
        size = counted_on(chosen)
        return Room(size, size, VARIABLE)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    whole = Room(memory.available + swap.free, memory.total + swap.total, "this machine has")
    limits = [whole, *group_limits(), *address_limit()]
    tightest = min(limits, key=lambda it: it.limit)
    return tightest._replace(free=min(it.free for it in limits))


def counted_on(gigabytes: str) -> int:
    """Return the bytes that a user says to count on.

    >>> counted_on("1.5")
    1500000000
    """
    try:
        return int(float(gigabytes) * 1e9)
    except (ValueError, OverflowError):
        raise BadInputError(
            f"{VARIABLE}={gigabytes} should be a number of gigabytes, such as 16"
        ) from None


def address_limit() -> Iterator[Room]:
    """Yield what ``ulimit -v`` leaves beside the libraries, which take more addresses than memory."""
    import psutil

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        libraries = 0 if "torch" in sys.modules else MAPPED
        left = max(0, limit - psutil.Process().memory_info().vms - libraries)
        yield Room(left, left, "ulimit -v leaves")


def group_limits(root: Path = CGROUP) -> Iterator[Room]:
    """Yield what the control groups of this process leave, of version 1 and 2."""
    for folder in group_folders(root):
        for most, now in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = number(folder / most), number(folder / now)
            if limit is not None and used is not None:
                free = max(0, limit - used + reclaimable(folder))
                yield Room(free, limit, "the control group (container) allows")


def group_folders(root: Path) -> Iterator[Path]:
    """Yield the folders below ROOT that limit this process, those above its own group too."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if kinds in {"", "memory"} or "memory" in kinds.split(","):
                top = root / "memory" if kinds else root
                own = top / name.lstrip("/")
                yield from (it for it in (own, *own.parents) if it.is_relative_to(top))


def reclaimable(folder: Path) -> int:
    """Return the bytes of a group that are a cache of files, which the system gives back."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, size = line.partition(" ")
            if name in {"inactive_file", "total_inactive_file"}:
                return int(size)
    return 0


def number(file: Path) -> int | None:
    """Return the number in FILE; ``None`` where there is none, or "max"."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def ran_out(error: BaseException) -> bool:
    """Say whether ERROR tells that there was too little memory, whoever raised it.

    >>> ran_out(RuntimeError("[malloc_or_wait] Unable to allocate 8 bytes.")), ran_out(ValueError())
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    libraries = isinstance(error, RuntimeError | ImportError | SystemError)
    nameless = isinstance(error, OSError) and error.errno is None  # the loader's
    message = str(error)
    if isinstance(error, SystemError) and _NAMELESS in message:
        return any(True for _ in address_limit())
    return (libraries or nameless) and _MESSAGES.search(message) is not None


def pass_on_shortage(error: BaseException) -> None:
    """Raise ERROR again if it is about too little memory: it answers nothing that was asked."""
    if ran_out(error):
        raise error


def shown(size: float) -> str:
    """Return SIZE in gigabytes.

    >>> shown(12_345_678_901), shown(80_000_000)
    ('12.3 GB', '0.08 GB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e9:.2f} GB"


_expected: list[str] = []  # what the job under way was expected to need


def expect(need: str) -> None:
    """Remember the NEED of the job under way, which is reported if memory runs out all the same."""
    _expected[:] = [need]


def reported(error: BaseException) -> str | None:
    """Return one line on ERROR if it tells that memory ran out, with what the job needs."""
    if not ran_out(error):
        return None
    reason = " ".join(str(error).split()) or type(error).__name__
    need = "".join(f"; {each}" for each in _expected)
    return (
        f"memory ran out ({reason}){need}; {limits()}: close other programs, raise the limit, or use a"
        " machine with more"
    )


def limits() -> str:
    """Say what there is, in a few words, and without much memory."""
    try:
        there = room()
    except (ImportError, MemoryError, OSError):  # not even enough to ask the system
        return "there is next to none (see ulimit -v)"
    return f"{there.set_by} {shown(there.limit)}, of which {shown(there.free)} are free"
