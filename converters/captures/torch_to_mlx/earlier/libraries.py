"""Whether a library's functions and classes are still its own, and which lie where."""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from .known import COMPILED, PER_PROCESS
from .telling import Telling, borrowed, known_function

VALUES: Final = (functools.partial, bool, int, float)  # texts are of paths and sessions


def places_of(modules: Iterable[str]) -> Iterator[str]:
    """Tell which functions, classes and numbers MODULES have under which names, and those of modules of theirs.

    One of a library may have been put in another's place there, and is known itself. Of torch, which has
    thousands, only the modules given are told.
    """
    seen, waiting = set[str](), sorted(modules)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or type(module) is not ModuleType:
            continue
        seen.add(name)
        package = name.partition(".")[0]
        for key, value in sorted(vars(module).items()):
            kind = type(value)  # isinstance would ask the value itself, which may warn
            if key.startswith(COMPILED) or key in PER_PROCESS:
                continue
            if issubclass(kind, FunctionType | BuiltinFunctionType | type):
                owner = str(value.__module__)
                yield f"{name}.{key}={owner}.{value.__qualname__}"
                waiting += [owner] if owner.partition(".")[0] == package != "torch" else []
            elif kind in VALUES and not key.startswith("__"):
                yield f"{name}.{key}={Telling().settings(value)}"


def check_package(package: str) -> None:
    """Refuse a PACKAGE of which a loaded function, method or registered function is not its own.

    Raises:
        UnknownError: one is a user's, put in the place of another.
    """
    loaded = [it for name, it in [*sys.modules.items()] if name.partition(".")[0] == package]
    seen: set[int] = set()
    for module in loaded:
        for name, value in list(vars(module).items()):
            if id(value) not in seen and not name.startswith(COMPILED):
                seen.add(id(value))
                _check(value, seen)


def _check(value: Any, seen: set[int]) -> None:
    kind = type(
        value
    )  # isinstance would ask the value itself, which may warn or load what it stands for
    if issubclass(kind, FunctionType):
        known_function(value)
    elif issubclass(kind, type):
        for base in value.__mro__[:-1]:
            if id(base) not in seen or base is value:
                seen.add(id(base))
                collections.deque(borrowed(base), maxlen=0)
        _check_entries([*vars(value).values()])
    elif issubclass(kind, dict):
        _check_entries([value])
    elif issubclass(kind, Mapping):  # as that of attentions
        _check_entries([*getattr(value, "__dict__", {}).values()])


def _check_entries(tables: list[Any]) -> None:
    """Refuse functions of users among the values of those of TABLES that are dictionaries."""
    for table in tables:
        for value in list(dict.values(table)) if issubclass(type(table), dict) else ():
            if issubclass(type(value), FunctionType):
                known_function(value)
