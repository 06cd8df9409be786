"""Configurations, translated both ways. (Stub by the lead until LIBRARIES lands: overwrite this file.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Translation(NamedTuple):
    """A configuration and what was done to it."""

    config: dict[str, Any]
    added: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]
    removed: dict[str, Any]
    notes: tuple[str, ...] = ()


def to_mlx(config: Mapping[str, Any], target: Any) -> Translation:
    """Return CONFIG as it is."""
    return Translation(dict(config), {}, {}, {})


def to_torch(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Translation:
    """Return CONFIG as it is."""
    return Translation(dict(config), {}, {}, {})
