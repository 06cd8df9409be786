"""Floats that JSON has no form for, as transformers 5 and mlx-lm write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

IGNORED: Final = frozenset({"auto_map", "quantization_config"})


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


def own_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of CONFIG the class of configs is given."""
    return {key: value for key, value in config.items() if key not in IGNORED}


def document_of(config: Mapping[str, Any]) -> str:
    """Return what of CONFIG the class of configs is given, as JSON."""
    return json.dumps(decoded(own_keys(config)), sort_keys=True)
