"""Inputs and outputs that a package calls otherwise than the model that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


def names_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the model's name -> the package's, of what MANIFEST has under another name.

    >>> names_of({"names": {"input_ids": "tokens", "x": 3}}), names_of({"names": []})
    ({'input_ids': 'tokens'}, {})
    """
    entry = manifest.get("names")
    pairs = entry.items() if isinstance(entry, Mapping) else ()
    return {name: there for name, there in pairs if isinstance(there, str)}


def renamed(named: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return what is NAMED under its names in NAMES, where it has others.

    >>> renamed({"a": 1, "b": 2}, {"a": "c"})
    {'c': 1, 'b': 2}
    """
    return {names.get(name, name): value for name, value in named.items()}


def turned(names: Mapping[str, str]) -> dict[str, str]:
    """Return NAMES the other way round."""
    return {there: name for name, there in names.items()}
