"""Floats that JSON has no form for, as transformers 5 and mlx-lm write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def decoded(value: Any) -> Any:
    """Return VALUE with what transformers writes for infinities and NaN as floats.

    >>> decoded({"limits": [0.0, {"__float__": "Infinity"}]})
    {'limits': [0.0, inf]}
    """
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value
