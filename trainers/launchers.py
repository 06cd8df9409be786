"""Launchers: what has started this process as one of several, by the environment variables that it sets."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from ..errors import StoppedElsewhereError, UnsupportedError


class Launcher(NamedTuple):
    """A program that starts ranks: the backend it is for, and the variables that it sets."""

    name: str
    backend: str
    rank: str
    size: str  # not always set


LAUNCHERS: Final = (
    Launcher("torchrun", "torch", "RANK", "WORLD_SIZE"),
    Launcher("mlx.launch", "mlx", "MLX_RANK", "MLX_WORLD_SIZE"),
    Launcher("mpirun", "mlx", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("mpirun", "mlx", "PMI_RANK", "PMI_SIZE"),
)


def launched() -> tuple[Launcher, int] | None:
    """Return what has started this process as one of several, and its rank; ``None`` where nothing has."""
    for launcher in LAUNCHERS:
        rank, size = (os.environ.get(name, "") for name in (launcher.rank, launcher.size))
        if rank.isdecimal() and size != "1" and (size.isdecimal() or launcher.backend == "mlx"):
            return launcher, int(rank)
    return None


def is_first() -> bool:
    """Return whether this process is the one of its ranks that prints."""
    found = launched()
    return found is None or found[1] == 0


def require_alone(what: str) -> None:
    """Refuse WHAT, which one process does, where several were started.

    Raises:
        UnsupportedError: on the first rank; says what to do.
        StoppedElsewhereError: on the others.
    """
    if found := launched():
        refuse(found[1], f"{what} runs in one process; start it without {found[0].name}")


def refuse(rank: int, text: str) -> None:
    """Refuse what RANK was started for, with TEXT on the first rank.

    Raises:
        UnsupportedError: on the first rank.
        StoppedElsewhereError: on the others.
    """
    if rank:
        raise StoppedElsewhereError(text)
    raise UnsupportedError(text)
