"""What an MLX class does not do as the config says: upstream's limits, named."""

from __future__ import annotations

from ..libraries import Target
from .source import Source


def notes(target: Target, source: Source) -> tuple[str, ...]:
    """Return one sentence for everything in the config that TARGET does not read."""
    return ()
