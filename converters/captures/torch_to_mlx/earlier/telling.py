"""What a module is made of, told in words that are the same in every process, or not at all.

Code that is installed, of some version, or ours, is told by its name; a user's by what it says, and by all that it
reaches. What cannot be followed, such as an object of an unknown kind, is not told.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch.utils._contextlib import _DecoratorContextManager

from .known import UnknownError, is_at_its_place, is_known, is_known_module, is_standard, place_of
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
    torch.dtype,
    torch.device,
    enum.Enum,
    re.Pattern,
)
CONTENT: Final = (*PLAIN, Mapping, tuple, list, set, frozenset, torch.Tensor)
SPEAKING: Final = frozenset(
    {"dataclasses", "types", "typing"}
)  # whose objects say all that they are
BUILT_IN_CODE: Final = frozenset({"pybind11_builtins", "pybind11_detail"})
FUNCTIONS: Final = FunctionType | BuiltinFunctionType | MethodType
CONFIGURATIONS: Final = "transformers"
HASH: Final = "_original_object_hash"  # of a configuration, another one in each process
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
        if is_known_module(kind.__module__):
            return f"{kind.__name__} {self._value(value)}"
        held = self._held(value) if isinstance(value, CONTENT) else {}
        return f"{self.kind(kind)} {self._value(value)} {held and self.settings(held)}"

    def _value(self, value: Any) -> str:
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            items = (f"{key!r}: {self.settings(it)}" for key, it in value.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self.settings, value))}]"
        if isinstance(value, set | frozenset):
            return str(sorted(map(self.settings, value)))
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        return self._object(value)

    def _object(self, value: Any) -> str:
        if isinstance(value, type | FUNCTIONS):
            return self.kind(value) if isinstance(value, type) else self.function(value)
        if isinstance(value, functools.partial):
            return " ".join(map(self.settings, (value.func, value.args, value.keywords)))
        if isinstance(value, ModuleType):
            return self._users.module(value, ANY)
        if isinstance(value, logging.Logger):
            return value.name
        if isinstance(getattr(value, "__wrapped__", None), FUNCTIONS):  # with a cache, or a hook
            return self.function(value.__wrapped__)
        return repr(value) if type(value).__module__ in SPEAKING else self._instance(value)

    def _instance(self, value: Any) -> str:
        """Tell VALUE, an object of a class: one of transformers' configurations, or of a user's class."""
        if id(value) in self._told:
            return self._again(value)
        bases = [base.__module__ for base in type(value).__mro__[:-1]]
        packages = {it.partition(".")[0] for it in bases}
        if CONFIGURATIONS in packages and hasattr(value, "to_dict"):
            return self._configuration(value)
        opaque = not bases or any(map(is_known_module, bases))  # it may hold what is seen nowhere
        if opaque and not isinstance(value, _DecoratorContextManager):  # as torch.no_grad
            raise UnknownError(type(value))
        return f"{self._again(value)} {self.settings(self._held(value))}"

    @staticmethod
    def _held(value: Any) -> dict[str, Any]:
        """Return what VALUE, of a user's class, holds in attributes."""
        slots = [it for base in type(value).__mro__ for it in vars(base).get("__slots__", ())]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return held | getattr(value, "__dict__", {})

    def _configuration(self, value: Any) -> str:
        attention = getattr(value, "_attn_implementation", None)
        if not isinstance(attention, dict) and attention not in ATTENTIONS:
            raise UnknownError(attention)
        own = {name: it for name, it in vars(value).items() if isinstance(it, PLAIN)}
        own.pop(HASH, None)
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
    outside = is_standard(module) and module not in PURE
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


def _functions(value: Any) -> list[Any]:
    """Return the functions that VALUE, an entry of a class, calls."""
    if isinstance(value, property):
        return [it for it in (value.fget, value.fset, value.fdel) if it is not None]
    function = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return [function] if isinstance(function, FunctionType | BuiltinFunctionType) else []
