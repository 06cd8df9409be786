"""Headers as JSON, for what processes ask one another and what the cache keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..checkpoints.base import Header

Listed: TypeAlias = dict[str, list[Any]]


def listed(headers: Mapping[str, Header]) -> Listed:
    """Return HEADERS as JSON.

    >>> listed({"a": Header("F32", (2, 3))})
    {'a': ['F32', 2, 3]}
    """
    return {name: [header.dtype, *header.shape] for name, header in headers.items()}


def unlisted(rows: Mapping[str, list[Any]]) -> dict[str, Header]:
    """Return the headers that ``listed`` wrote as ROWS."""
    return {name: Header(dtype, tuple(shape)) for name, (dtype, *shape) in rows.items()}
