"""A verdict for programs."""

from __future__ import annotations

import json
import math
from typing import Any

from ..check.verdict import Verdict


def plain(value: Any) -> Any:
    """Return VALUE with numbers that JSON lacks as text, tuples as lists.

    >>> plain({"ratio": float("inf"), "shape": (2, 3)})
    {'ratio': 'inf', 'shape': [2, 3]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def dumps(verdict: Verdict) -> str:
    """Return VERDICT as JSON text that any reader takes, infinities written as ``"inf"``."""
    return json.dumps(plain(verdict.to_json()), indent=2)
