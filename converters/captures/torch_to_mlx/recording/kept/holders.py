"""Numbers, lists and dictionaries that code keeps in Python, and where: what a call may change unseen.

A module's own attributes are looked at, objects that it holds, its classes, and the global names, defaults and closures
of the functions that its code names.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

Kept = dict[Any, Any]  # place of the holder, name in messages -> a number, or a list or dictionary

_NUMBERS: Final = (bool, int, float)  # a text names a way, which stays as the first call chose it
_LISTS: Final = (list, deque)
_DRAWING: Final = (random.Random, np.random.Generator, np.random.RandomState)
_OWN: Final = vars(
    torch.nn.Module()
).keys()  # of modules: the mode is changed by recording itself, to see gradients
_CACHED: Final = functools._lru_cache_wrapper
_FOREIGN: Final = {*sys.stdlib_module_names, "torch", "numpy"}
_DEPTH: Final = 2  # objects in objects that are looked into
_MANY: Final = 64  # values of a list that are looked into


class Cached(NamedTuple):
    """How many answers a cached function holds: these are forgotten, and change nothing that is computed."""

    size: int


class Holder(NamedTuple):
    """Something that holds values by name.

    Attributes:
        label: what it is called before a dot; empty for the module itself.
        values: gives what it holds now.
        put: gives it another value.
    """

    label: str
    values: Callable[[], Mapping[str, Any]]
    put: Callable[[str, Any], None]

    def counted(self) -> Iterator[tuple[str, str, Any]]:
        """Yield name, name in messages, and value of what counts."""
        for name, value in [*self.values().items()]:
            if _counts(name, value):
                yield name, ".".join(filter(None, (self.label, name))), value


def kept(holders: Sequence[Holder]) -> Kept:
    """Return what HOLDERS keep now, copied."""
    return {
        (place, key): _copied(value)
        for place, it in enumerate(holders)  # names alone may be equal
        for _, key, value in it.counted()
    }


def restore(holders: Sequence[Holder], wanted: Kept) -> None:
    """Let HOLDERS keep what is WANTED; lists and dictionaries stay the same objects."""
    for place, holder in enumerate(holders):
        for name, key, value in holder.counted():
            if (place, key) in wanted and _copied(value) != wanted[place, key]:
                _set(holder, name, value, wanted[place, key])


def _set(holder: Holder, name: str, value: Any, wanted: Any) -> None:
    if isinstance(value, _NUMBERS):
        holder.put(name, wanted)
    elif isinstance(value, _CACHED):
        value.cache_clear()  # it may give tensors of a recording, which have no values
    elif isinstance(value, dict):
        for key in dict.keys(value) - wanted.keys():
            del value[key]
        value.update({k: it for k, it in wanted.items() if it is not None or k not in value})
    elif isinstance(value, _LISTS):
        _resize(value, wanted)


def _resize(value: Any, wanted: list[Any]) -> None:
    """Make VALUE what was WANTED: numbers again, of other lists the length."""
    if None not in wanted:
        value.clear()
        value.extend(wanted)
    while len(value) > len(wanted):
        value.pop()
    value.extend([None] * (len(wanted) - len(value)))


def draws() -> tuple[Any, ...]:
    """Return what tells whether Python or numpy has drawn random numbers since."""
    # Printing the 624 numbers took a tenth of a small recording.
    return random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002 - which is what users' code draws from


def _counts(name: str, value: Any) -> bool:
    kinds = (*_NUMBERS, *_LISTS, dict, itertools.count, *_DRAWING, _CACHED)
    return name not in _OWN and name[:2] != "__" and isinstance(value, kinds)


def _copied(value: Any) -> Any:
    """Return a number, or a copy of a list or dictionary of numbers; of others length or keys count."""
    if isinstance(value, _LISTS):
        numbers = all(isinstance(it, _NUMBERS) for it in value)
        return [*value] if numbers else [None] * len(value)
    if isinstance(value, dict):
        items = [
            *dict.items(value)
        ]  # what it holds, not what a dictionary of its own kind would load
        return {key: it if isinstance(it, _NUMBERS) else None for key, it in items}
    if isinstance(value, _CACHED):
        return Cached(value.cache_info().currsize)
    return value if isinstance(value, _NUMBERS) else _state(value)


def _state(value: Any) -> str:
    """Return what an iterator or a generator of random numbers is about to give."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    drawing = getattr(value, "getstate", None) or getattr(value, "get_state", None)
    return repr(drawing() if drawing else value)


def holders_of(module: torch.nn.Module) -> list[Holder]:
    """Return what holds values that calls of MODULE may read."""
    found = _Search()
    for path, part in module.named_modules():
        found.object(path, part, 0)
    return found.holders


class _Search:
    """Gathers holders, each once."""

    def __init__(self) -> None:
        self.holders: list[Holder] = []
        self.seen: set[int] = set()

    def _new(self, value: Any) -> bool:
        fresh = id(value) not in self.seen
        self.seen.add(id(value))
        return fresh

    def object(self, label: str, value: Any, depth: int) -> None:
        """Look into VALUE, an object of a class that is not a library's own, and into its class."""
        if depth > _DEPTH or not self._new(value):
            return
        held = vars(value)
        self.holders.append(Holder(label, lambda: held, held.__setitem__))
        for cls in type(value).__mro__:
            self._class(cls, code=True)
        for name, below in [*held.items()]:
            if name not in _OWN:
                self._value(f"{label}.{name}".strip("."), below, depth + 1)

    def _class(self, cls: type, code: bool) -> None:
        """Look at what CLS holds, and at what its CODE names."""
        if _foreign(cls.__module__) or not self._new(cls):
            return
        self._hold(cls.__name__, lambda: vars(cls), functools.partial(setattr, cls))
        for name, it in [*vars(cls).items()] if code else ():
            self._value(f"{cls.__name__}.{name}", getattr(it, "__func__", it), 1)

    def _hold(
        self, label: str, values: Callable[[], Mapping[str, Any]], put: Callable[[str, Any], None]
    ) -> None:
        """Note what counts of VALUES as they are now: only objects get new ones."""
        names = [name for name, value in values().items() if _counts(name, value)]
        if names:
            self.holders.append(
                Holder(label, lambda: {k: v for k, v in values().items() if k in names}, put)
            )

    def _value(self, label: str, value: Any, depth: int) -> None:
        """Look into what code names or an object holds."""
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, MethodType):
            self._value(label, value.__self__, depth)
            value = value.__func__
        if isinstance(value, FunctionType):
            self._function(value, depth)
        elif type(value) in (list, tuple, dict):
            below = value.values() if isinstance(value, dict) else value
            for it in [*itertools.islice(below, _MANY)]:
                self._value(label, it, depth + 1)
        elif isinstance(value, type):
            self._class(value, code=False)
        elif hasattr(value, "__dict__") and not _foreign(type(value).__module__):
            self.object(label, value, depth)

    def _function(self, function: FunctionType, depth: int) -> None:
        """Look at the global names, defaults and closure of FUNCTION."""
        if _foreign(function.__module__) or depth > _DEPTH or not self._new(function):
            return
        label, known = function.__qualname__, function.__globals__
        names = sorted({*_names(function.__code__)} & known.keys())
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

        def named() -> dict[str, Any]:
            return {name: known[name] for name in names}

        def closed() -> dict[str, Any]:
            return {name: it.cell_contents for name, it in cells.items() if it != CellType()}

        def defaults() -> dict[str, Any]:
            count, given = function.__code__.co_argcount, function.__defaults__ or ()
            return dict(
                zip(function.__code__.co_varnames[count - len(given) : count], given, strict=True)
            )

        def close(name: str, value: Any) -> None:
            cells[name].cell_contents = value

        self._hold("", named, known.__setitem__)
        self._hold(label, closed, close)
        self._hold(label, defaults, lambda *_: None)
        for name, value in [*named().items(), *closed().items()]:
            self._value(f"{label}.{name}", value, depth + 1)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that CODE reads, in functions inside it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _foreign(module: str | None) -> bool:
    """Say whether MODULE is of Python or torch, or has no name."""
    return not module or module.partition(".")[0] in _FOREIGN
