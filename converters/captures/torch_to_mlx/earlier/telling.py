"""What a module is made of, told in words that are the same in every process, or not at all.

Code that is installed, of some version, or ours, is told by its name; a user's by what it says, and by all that it
reaches. What cannot be followed, such as an object of an unknown kind, is not told.
"""

from __future__ import annotations

import argparse
import enum
import functools
import hashlib
import json
import logging
import re
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field
from types import (
    BuiltinFunctionType,
    CellType,
    EllipsisType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final

import torch

from .known import (
    PER_PROCESS,
    UnknownError,
    is_at_its_place,
    is_known,
    is_known_module,
    is_standard,
    place_of,
)
from .users import ANY, PURE, UNSEEN, UsersCode

PLAIN: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    complex,
    type(None),
    EllipsisType,
    type(NotImplemented),
    torch.dtype,
    torch.device,
    enum.Enum,
    re.Pattern,
)
CONTENT: Final = (*PLAIN, Mapping, tuple, list, set, frozenset, torch.Tensor)
OPEN: Final = (SimpleNamespace, *argparse.Namespace.__mro__[:-1])  # of Python's own
HEAP: Final = 1 << 9  # the flag of a class that is made at run time
BUILT_IN_CODE: Final = frozenset({"pybind11_builtins", "pybind11_detail"})
NUMBERS: Final = (bool, int, float, str)
FUNCTIONS: Final = FunctionType | BuiltinFunctionType | MethodType
CONFIGURATIONS: Final = "transformers"
ATTENTIONS: Final = (None, "eager", "sdpa")  # transformers keeps users' beside its own


class Telling:
    """Tells values, functions and classes; what it has told once it calls by a number.

    Args:
        parts: modules that somebody else tells, each by its number.

    >>> Telling().settings({"eps": 1e-5, "axes": (0, 1)})
    "dict {'eps': float 1e-05, 'axes': tuple [int 0, int 1]}"
    """

    def __init__(self, parts: Iterable[Any] = ()) -> None:
        self.modules: set[str] = set()  # those of libraries that users' code reaches
        self._told: dict[int, tuple[int, Any]] = {}  # with the things, so that no id is given again
        self._users = UsersCode(self.settings, self.modules)
        for part in parts:
            self._again(part)

    def settings(self, value: Any) -> str:
        """Tell VALUE, an attribute of a module or what a user's code reaches.

        Raises:
            UnknownError: it is of no known kind.
        """
        kind = type(value)
        text = kind.__name__ if is_known_module(kind.__module__) else self.kind(kind)
        held = self._held(value) if isinstance(value, CONTENT) else {}
        return " ".join((text, self._value(value), *([self.settings(held)] if held else [])))

    def _value(self, value: Any) -> str:
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            items = (f"{key!r}: {self.settings(it)}" for key, it in value.items())
            return f"{{{', '.join(items)}}}{self._default(value)}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self.settings, value))}]"
        if isinstance(value, set | frozenset):
            return str(sorted(map(self.settings, value)))
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        return self._object(value)

    def _default(self, value: Any) -> str:
        return f" {self.settings(value.default_factory)}" if isinstance(value, defaultdict) else ""

    def _object(self, value: Any) -> str:
        ways: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (type, self.kind),
            (FUNCTIONS, self.function),
            (functools.partial, self._partial),
            (ModuleType, lambda it: self._users.module(it, ANY)),
            (logging.Logger, lambda it: str(it.name)),
            (weakref.ref, lambda it: self.settings(it())),
            (functools._lru_cache_wrapper, self._caching),
        )
        tell = next((way for kind, way in ways if isinstance(value, kind)), self._instance)
        return tell(value)

    def _partial(self, value: Any) -> str:
        return " ".join(map(self.settings, (value.func, value.args, value.keywords, vars(value))))

    def _caching(self, function: Any) -> str:
        """Tell FUNCTION, which keeps what it returned: a user's that has may return what is made no more."""
        if function.cache_info().currsize and not is_known(function.__wrapped__):
            raise UnknownError(place_of(function))
        return self.function(function.__wrapped__)

    def _instance(self, value: Any) -> str:
        """Tell VALUE, an object of a class: one of transformers' configurations, or of a user's class."""
        if id(value) in self._told:
            return self._again(value)
        if type(value).__module__ in {"types", "typing"} and not isinstance(value, OPEN):
            return f"{value!r} {self.settings(getattr(value, '__args__', None))}"
        if type(value).__module__ == "dataclasses" and not isinstance(value, Field):
            return ""  # one of a kind
        bases = type(value).__mro__[:-1]
        packages = {it.__module__.partition(".")[0] for it in bases}
        if CONFIGURATIONS in packages and hasattr(value, "to_dict"):
            return self._configuration(value)
        if type(value) is object or not all(map(_shows_what_it_holds, bases)):
            raise UnknownError(type(value))
        return f"{self._again(value)} {self.settings(self._held(value))}"

    @staticmethod
    def _held(value: Any) -> dict[str, Any]:
        """Return what VALUE, of a user's class, holds in attributes."""
        parts = [it for base in type(value).__mro__ for it in vars(base).items()]
        slots = [(name, it) for name, it in parts if isinstance(it, MemberDescriptorType)]
        held = {}
        for name, slot in slots:
            with suppress(AttributeError):  # nothing yet
                held[name] = slot.__get__(value)
        return held | getattr(value, "__dict__", {})

    def _configuration(self, value: Any) -> str:
        attention = getattr(value, "_attn_implementation", None)
        if not isinstance(attention, dict) and attention not in ATTENTIONS:
            raise UnknownError(attention)
        own = {
            name: it
            for name, it in vars(value).items()
            if isinstance(it, PLAIN) and name not in PER_PROCESS
        }
        text = json.dumps([value.to_dict(), own], sort_keys=True, default=self.settings)
        return f"{self.kind(type(value))} {text} {attention!r}"

    def function(self, function: Any) -> str:
        """Tell FUNCTION: by its name, where its module has it so; else by what it holds, and a user's by its code.

        Raises:
            UnknownError: what it reaches is of an unknown kind, or may differ from call to call.
        """
        if isinstance(function, MethodType):
            return f"{self.function(function.__func__)} of {self.settings(function.__self__)}"
        if _is_built_in(function):
            return self._built_in(function)
        if id(function) in self._told:
            return self._again(function)
        if not is_known(function):
            return f"{self._again(function)} {self._users.function(function)}"
        self.modules.add(function.__globals__["__name__"])
        if is_at_its_place(function):
            return _pure(function)
        held = [it.cell_contents for it in function.__closure__ or ()]
        return f"{self._again(function)} {place_of(function)} {self.settings([*held, function.__defaults__])}"

    def _built_in(self, function: Any) -> str:
        holder = getattr(function, "__self__", None)
        if isinstance(holder, ModuleType | type | None) or type(holder).__module__ in BUILT_IN_CODE:
            return _pure(function)
        return f"{place_of(function)} of {self.settings(holder)}"

    def kind(self, kind: type) -> str:
        """Tell the class KIND by its name and by functions that have another's place in it, a user's by its code.

        Raises:
            UnknownError: a part of a library's class is a user's, or one of a user's cannot be told.
        """
        if id(kind) in self._told:
            return self._again(kind)
        texts = [self._again(kind), place_of(kind)]
        if not is_known_module(kind.__module__):
            texts.append(self.kind(type(kind)))
        for base in kind.__mro__[:-1]:
            if is_known_module(base.__module__):
                self.modules.add(base.__module__)
                texts += borrowed(base)
            else:
                texts += self._users.entries(base)
        return " ".join(texts)

    def _again(self, thing: Any) -> str:
        number, _ = self._told.setdefault(id(thing), (len(self._told), thing))
        return f"#{number}"


def _shows_what_it_holds(kind: type) -> bool:
    """Tell whether objects of KIND hold all that they hold in attributes: it is written in Python."""
    place = kind.__module__
    if not is_known_module(place) or kind in OPEN:
        return True
    file = str(getattr(sys.modules.get(place), "__file__", ""))
    parts = [getattr(it, "__func__", it) for it in vars(kind).values()]
    in_python = "__slots__" in vars(kind) or any(isinstance(it, FunctionType) for it in parts)
    loaded = file.endswith(".py") and not is_standard(place)
    return loaded and in_python and bool(kind.__flags__ & HEAP)


def _tensor(value: torch.Tensor) -> str:
    data = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(data).hexdigest()}"


def _pure(function: Any) -> str:
    """Return the name of FUNCTION, a library's; one of Python's own may depend on nothing but what it is given.

    Raises:
        UnknownError: it may.
    """
    module = str(getattr(function, "__module__", ""))
    users = module in sys.modules and not is_known_module(module)  # an extension
    outside = (is_standard(module) and module not in PURE) or module in UNSEEN
    if users or outside or place_of(function) in UNSEEN:
        raise UnknownError(place_of(function))
    return place_of(function)


def known_function(function: Any) -> str:
    """Tell FUNCTION by its name; it and what it wraps have to be installed, or ours.

    Raises:
        UnknownError: it is a user's, or made of values that are not seen.
    """
    function = getattr(function, "__func__", function)
    if _is_built_in(function):
        return place_of(function)
    if type(function).__module__ == "operator":
        return repr(function)
    if not all(map(is_known, _with_wrapped(function, {}))):
        raise UnknownError(place_of(function))
    return place_of(function)


def _is_built_in(function: Any) -> bool:
    return isinstance(function, BuiltinFunctionType) or type(function).__module__ == "nanobind"


def _with_wrapped(function: Any, seen: dict[int, Any]) -> Iterable[Any]:
    """Return FUNCTION and those that it holds: the text of a decorated one is its decorator's."""
    if id(function) not in seen:
        seen[id(function)] = function
        held = [_held(cell) for cell in getattr(function, "__closure__", None) or ()]
        inner = [
            getattr(it, "__func__", it) for it in (*held, getattr(function, "__wrapped__", None))
        ]
        for it in inner:
            if isinstance(it, FunctionType):
                _with_wrapped(it, seen)
    return seen.values()


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def borrowed(kind: type) -> Iterator[str]:
    """Yield the functions of KIND itself, nothing it inherits, that have another's name; all have to be known.

    Raises:
        UnknownError: the class or one of its functions is a user's.
    """
    place = place_of(kind)
    if not is_known_module(kind.__module__):
        raise UnknownError(place)
    for name, value in vars(kind).items():
        for function in _functions(value):
            text = known_function(function)
            if text != f"{place}.{name}":
                yield f"{place}.{name}={text}"
        if type(value) in NUMBERS and not name.startswith("__") and name not in PER_PROCESS:
            yield f"{place}.{name}={value!r}"


def _functions(value: Any) -> list[Any]:
    """Return the functions that VALUE, an entry of a class, calls."""
    if isinstance(value, property):
        return [it for it in (value.fget, value.fset, value.fdel) if it is not None]
    function = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return [function] if isinstance(function, FunctionType | BuiltinFunctionType) else []


def methods_of_tensors() -> Iterator[str]:
    """Yield the methods of tensors, of which any may have been put in another's place."""
    for name, value in sorted(vars(torch.Tensor).items()):
        if isinstance(value, MethodDescriptorType):
            yield f"{name}={value.__name__}"
    yield from borrowed(torch.Tensor)
