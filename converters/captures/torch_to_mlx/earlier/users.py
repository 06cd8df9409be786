"""How code of a user's is told: by its instructions, and by all that it reaches through names."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial, partialmethod
from importlib.util import resolve_name
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final, NamedTuple

import torch

from .known import UnknownError, is_known_module, is_standard, place_of

# Modules of Python's own library of which no function looks at anything but what it is given.
PURE: Final = frozenset(
    name
    for group in (
        ("__future__", "abc", "_abc", "builtins", "collections", "collections.abc", "_collections"),
        ("contextlib", "copy", "dataclasses", "enum", "functools", "_functools", "inspect"),
        ("itertools", "logging", "operator", "_operator", "re", "string", "textwrap", "types"),
        ("cmath", "math", "numbers", "typing", "warnings"),
    )
    for name in group
)
# What may reach anything, or something outside the process.
UNSEEN: Final = frozenset(
    {
        "numpy.random",
        *(f"builtins.{it}" for it in ("__import__", "breakpoint", "compile", "eval", "exec")),
        *(f"builtins.{it}" for it in ("globals", "input", "locals", "open", "vars")),
    }
)
# What takes attributes of any name.
BY_NAME: Final = frozenset({"getattr", "hasattr", "__dict__", "__getattribute__"})
LOADS: Final = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
)
ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
# Entries of classes and modules that Python makes of the others, or that no computation reads.
MADE: Final = frozenset(
    name
    for group in (
        ("abstractmethods", "annotate", "annotations", "dataclass_fields", "dataclass_params"),
        ("dict", "doc", "firstlineno", "match_args", "module", "orig_bases", "parameters"),
        ("qualname", "static_attributes", "weakref", "builtins", "cached", "file", "loader"),
        ("package", "path", "slotnames", "spec"),
    )
    for name in (*(f"__{it}__" for it in group), "_abc_impl")
)


class Attributes(NamedTuple):
    """Those that a function takes of anything: of these names, and of any name if it has one at run time."""

    names: frozenset[str]
    any_name: bool


ANY: Final = Attributes(frozenset(), any_name=True)
DESCRIPTORS: Final = (
    GetSetDescriptorType,
    MemberDescriptorType,
    WrapperDescriptorType,
    type(Attributes.any_name),
)


class Names(NamedTuple):
    """What a function calls by name: globals, attributes, and modules that it imports."""

    loaded: frozenset[str]
    attributes: Attributes
    imported: frozenset[str]


class UsersCode:
    """Tells functions and classes of users.

    Args:
        settings: tells any value that they reach.
        modules: takes the names of the libraries' modules that they reach.
    """

    def __init__(self, settings: Callable[[Any], str], modules: set[str]) -> None:
        self._settings = settings
        self._modules = modules
        self._followed: set[tuple[str, str, Attributes | None]] = set()

    def function(self, function: FunctionType) -> str:
        """Tell FUNCTION by its code, by what it holds and by what it reaches.

        Raises:
            UnknownError: it writes globals, or reaches what cannot be told.
        """
        names = _names(function.__code__)
        held = [function.__defaults__, function.__kwdefaults__, vars(function)]
        cells = [it.cell_contents for it in function.__closure__ or ()]
        texts = [self._code(function.__code__), *map(self._settings, [*held, cells])]
        scope = function.__globals__
        texts += [
            f"{name}={self._global(name, scope, names.attributes)}" for name in sorted(names.loaded)
        ]
        texts += [
            f"{name}={self.module(_imported(name, scope), names.attributes)}"
            for name in sorted(names.imported)
        ]
        return " ".join(texts)

    def _code(self, code: CodeType) -> str:
        consts = [
            self._code(it) if isinstance(it, CodeType) else self._settings(it)
            for it in code.co_consts
        ]
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {counts} {names} {consts}"

    def _global(self, name: str, scope: dict[str, Any], attributes: Attributes) -> str:
        if name in scope:
            return self._of(scope[name], attributes)
        if f"builtins.{name}" in UNSEEN:
            raise UnknownError(name)
        return "built in"

    def _of(self, value: Any, attributes: Attributes) -> str:
        if isinstance(value, ModuleType):
            return self.module(value, attributes)
        return self._settings(value)

    def module(self, module: ModuleType, attributes: Attributes) -> str:
        """Tell what MODULE has under those of ATTRIBUTES, or all; one of a library's by names alone.

        Raises:
            UnknownError: it may give other things from call to call.
        """
        place = module.__name__
        if (is_standard(place) and place not in PURE) or place in UNSEEN or module is torch.ops:
            raise UnknownError(place)
        known = is_known_module(place)
        if known:
            self._modules.add(place)
        elif "__getattr__" in vars(module):
            raise UnknownError(place)
        texts = [place]
        wanted = vars(module) if attributes.any_name else attributes.names
        for name in sorted((vars(module).keys() & wanted) - MADE):
            value = vars(module)[name]
            is_module = isinstance(value, ModuleType)
            taken = (place, name, attributes if is_module else None)
            if taken in self._followed or (is_module and known and name not in attributes.names):
                continue
            self._followed.add(taken)
            tell = self._of_library if known else self._of
            texts.append(f"{name}={tell(value, attributes)}")
        return " ".join(texts)

    def _of_library(self, value: Any, attributes: Attributes) -> str:
        if isinstance(value, ModuleType):
            return self.module(value, attributes._replace(any_name=False))
        if isinstance(value, type):
            return place_of(value)
        has_words = isinstance(
            value, FunctionType | BuiltinFunctionType | partial | float | int | str
        )
        return self._settings(value) if has_words else type(value).__name__

    def entries(self, kind: type) -> Iterator[str]:
        """Yield what KIND, a class of a user's, has itself.

        Raises:
            UnknownError: an entry cannot be told.
        """
        for name, value in sorted(vars(kind).items()):
            if name not in MADE:
                yield f"{name}={self._entry(value)}"

    def _entry(self, value: Any) -> str:
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self._settings(value.__func__)}"
        if isinstance(value, property):
            return self._settings([value.fget, value.fset, value.fdel])
        if isinstance(value, cached_property):
            return self._settings(value.func)
        if isinstance(value, partialmethod):
            return self._settings([value.func, value.args, value.keywords])
        if isinstance(value, DESCRIPTORS):
            return place_of(value)
        return self._settings(value)


def _names(code: CodeType) -> Names:
    """Return what CODE and the functions written in it call by name.

    Raises:
        UnknownError: it writes globals.
    """
    loaded, attributes, imported = set[str](), set[str](), set[str]()
    for at, it in enumerate(steps := [*_instructions(code)]):
        if it.opname in WRITES:
            raise UnknownError(it.argval)
        if it.opname in LOADS:
            loaded.add(it.argval)
        if it.opname in ATTRIBUTES:
            attributes.add(it.argval)
        if it.opname == "IMPORT_NAME":
            imported.add("." * steps[at - 2].argval + it.argval)
    taken = Attributes(frozenset(attributes), not BY_NAME.isdisjoint(loaded | attributes))
    return Names(frozenset(loaded), taken, frozenset(imported))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for it in code.co_consts:
        if isinstance(it, CodeType):
            yield from _instructions(it)


def _imported(name: str, scope: dict[str, Any]) -> ModuleType:
    """Return the module that a function with this SCOPE imports as NAME.

    Raises:
        UnknownError: it is not loaded yet.
    """
    found = sys.modules.get(resolve_name(name, scope.get("__package__")))
    if found is None:
        raise UnknownError(name)
    return found
