"""Names for the arrays of an example that has none, a tuple: the objective's inputs in their order."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

VARIABLE: Final = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def input_orders(kind: Any, module: Any = None) -> list[list[str]]:
    """Return the names of a tuple's arrays, for an objective of class KIND around MODULE, a list a length of tuple.

    They are the inputs of ``forward``, or of an objective that takes any: the inputs of the module, and then
    the answer. Inputs that need not be given are in a tuple all or none.
    """
    if ways := _parameters(getattr(kind, "forward", None), skipped=1):
        return ways
    optional = getattr(kind, "optional", ())
    if inputs := list(getattr(kind, "dynamic", None) or ()):
        return _distinct([[name for name in inputs if name not in optional], inputs])
    answers = list(getattr(kind, "wanted", ()))[-1:]
    return [way + answers for way in _parameters(getattr(module, "forward", None))]


def _parameters(function: Any, skipped: int = 0) -> list[list[str]]:
    """Return the names that FUNCTION has to be given, and all that it takes; nothing where it takes any."""
    if function is None:
        return []
    found = [*inspect.signature(function).parameters.values()][skipped:]
    if any(it.kind in VARIABLE for it in found):
        return []
    needed = [it.name for it in found if it.default is it.empty]
    return _distinct([needed, [it.name for it in found]])


def _distinct(ways: Sequence[list[str]]) -> list[list[str]]:
    """Return WAYS without empty ones and repetitions."""
    return [way for at, way in enumerate(ways) if way and way not in ways[:at]]
