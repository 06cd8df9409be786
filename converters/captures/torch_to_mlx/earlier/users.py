"""How code of a user's is told: by its instructions, and by all that it reaches through names."""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator, Mapping
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

from .known import UnknownError, is_known_module, is_standard, is_to_be_loaded, place_of

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
        *("numpy.random", "torch.distributed", "torch.distributed.distributed_c10d", "torch.hub"),
        *(f"numpy.{it}" for it in ("fromfile", "genfromtxt", "load", "loadtxt", "memmap")),
        *(f"torch.{it}" for it in ("from_file", "initial_seed", "load", "random", "seed")),
        *(f"inspect.{it}" for it in ("currentframe", "getmembers", "getmodule", "getsource")),
        *("inspect.stack", "torch.serialization.load", "safetensors", "safetensors.torch"),
        *(f"builtins.{it}" for it in ("__import__", "breakpoint", "compile", "eval", "exec")),
        *(f"builtins.{it}" for it in ("globals", "input", "locals", "open", "vars")),
    }
)
# What takes attributes of any name.
BY_NAME: Final = frozenset({"getattr", "hasattr", "__dict__", "__getattribute__"})
# What leads from an object to others that its text does not name, or to words that compute nothing elsewhere.
HIDDEN: Final = frozenset(
    name
    for group in (
        ("__annotations__", "__builtins__", "__globals__", "__subclasses__", "annotation"),
        ("f_back", "f_builtins", "f_globals", "f_locals", "get_annotations", "get_type_hints"),
        ("return_annotation",),
    )
    for name in group
)
LOADS: Final = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"}
)
ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
TAKES: Final = LOADS | ATTRIBUTES
GOES_ON: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
WRITES: Final = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
# Entries of classes and modules that Python makes of the others, or that no computation reads.
MADE: Final = frozenset(
    name
    for group in (
        ("abstractmethods", "annotate", "annotations", "dataclass_params", "dict", "firstlineno"),
        ("module", "qualname", "static_attributes", "weakref", "builtins", "cached", "file"),
        ("loader", "package", "path", "slotnames", "spec"),
    )
    for name in (f"__{it}__" for it in group)
)


class Attributes(NamedTuple):
    """Those that a function takes of anything: of these names, and of any name if it has one at run time.

    Attributes:
        names: what it takes.
        passed: the names of things of which it does more than to take an attribute: others may take any of them.
        any_name: whether it takes attributes of names that are not written in it.
    """

    names: frozenset[str]
    passed: frozenset[str]
    any_name: bool

    def of(self, name: str) -> Attributes:
        """Return those that are taken of what has this NAME."""
        return self._replace(any_name=self.any_name or name in self.passed)


ANY: Final = Attributes(frozenset(), frozenset(), any_name=True)
VALUES: Final = (
    *(FunctionType, BuiltinFunctionType, ModuleType, partial, float, int, str),
    *(Mapping, tuple, list, set, torch.Tensor),
)  # of a library's own values
DESCRIPTORS: Final = (
    GetSetDescriptorType,
    MemberDescriptorType,
    WrapperDescriptorType,
    type(Attributes.any_name),
)


class Names(NamedTuple):
    """What a function calls by name: globals, attributes, and modules that it imports with names in them."""

    loaded: frozenset[str]
    attributes: Attributes
    imported: frozenset[tuple[str, tuple[str, ...]]]


class UsersCode:
    """Tells functions and classes of users.

    Args:
        settings: tells any value that they reach.
        modules: takes the names of the libraries' modules that they reach.
    """

    def __init__(self, settings: Callable[[Any], str], modules: set[str]) -> None:
        self._settings = settings
        self._modules = modules
        self._followed: set[tuple[int, str, Attributes | None]] = set()

    def function(self, function: FunctionType) -> str:
        """Tell FUNCTION by its code, by what it holds and by what it reaches.

        Raises:
            UnknownError: it writes globals, or reaches what cannot be told.
        """
        names = _names(function.__code__)
        held: list[Any] = [function.__name__, function.__qualname__, vars(function)]
        held += [function.__defaults__, function.__kwdefaults__]
        cells = [it.cell_contents for it in function.__closure__ or ()]
        texts = [self._code(function.__code__), *map(self._settings, [*held, cells])]
        scope = function.__globals__
        texts += [
            f"{name}={self._global(name, scope, names.attributes)}" for name in sorted(names.loaded)
        ]
        texts += [self._import(*about, scope, names.attributes) for about in sorted(names.imported)]
        return " ".join(texts)

    def _import(
        self, name: str, parts: tuple[str, ...], scope: dict[str, Any], attributes: Attributes
    ) -> str:
        place = resolve_name(name, scope.get("__package__"))
        if place not in sys.modules and is_to_be_loaded(place):
            return place
        packages = [place] if parts else [place.partition(".")[0], place]
        texts = []
        for it in packages:
            module = sys.modules.get(it)
            lazy = module is not None and not is_known_module(it) and {*parts} - {*vars(module)}
            if module is None or lazy:
                raise UnknownError(it)
            texts.append(f"{it}={self.module(module, attributes if parts else _all(attributes))}")
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
            return self._of(scope[name], attributes.of(name))
        return f"built in {self._settings(vars(builtins).get(name))}"

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
            self._modules.add(place)  # all of its functions are told by their names
        elif type(module) is not ModuleType or "__getattr__" in vars(module):
            raise UnknownError(place)
        wanted = vars(module) if attributes.any_name and not known else attributes.names
        names = sorted((vars(module).keys() & wanted) - MADE)
        return " ".join([place, *(self._part(module, it, known, attributes) for it in names)])

    def _part(self, module: ModuleType, name: str, known: bool, attributes: Attributes) -> str:
        if f"{module.__name__}.{name}" in UNSEEN:
            raise UnknownError(name)
        value, its = vars(module)[name], attributes.of(name)
        taken = (id(module), name, its if isinstance(value, ModuleType) else None)
        if taken in self._followed:
            return name
        self._followed.add(taken)
        return f"{name}={self._of_library(value, its) if known else self._of(value, its)}"

    def _of_library(self, value: Any, attributes: Attributes) -> str:
        if isinstance(value, type):
            return place_of(value)
        has_words = not is_known_module(type(value).__module__) or isinstance(value, VALUES)
        return self._of(value, attributes) if has_words else type(value).__name__

    def entries(self, kind: type) -> Iterator[str]:
        """Yield what KIND, a class of a user's, has itself.

        Raises:
            UnknownError: an entry cannot be told.
        """
        for name, value in sorted(vars(kind).items()):
            if name == "_abc_impl":
                if sys.modules["_abc"]._get_dump(kind)[0]:  # classes that are registered
                    raise UnknownError(kind)
            elif name == "__dataclass_fields__":
                fields = [
                    (it.name, it.default, it.default_factory, it.metadata) for it in value.values()
                ]
                yield f"{name}={self._settings(fields)}"
            elif name not in MADE:
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
    loaded, attributes, passed = set[str](), set[str](), set[str]()
    imported = set[tuple[str, tuple[str, ...]]]()
    for at, it in enumerate(steps := [*_instructions(code)]):
        if it.opname in WRITES or (it.opname in TAKES and it.argval in HIDDEN):
            raise UnknownError(it.argval)
        if it.opname in LOADS:
            loaded.add(it.argval)
        if it.opname in ATTRIBUTES:
            attributes.add(it.argval)
        if it.opname in TAKES and steps[at + 1].opname not in GOES_ON:
            passed.add(it.argval)
        if it.opname == "IMPORT_NAME":
            imported.add(("." * steps[at - 2].argval + it.argval, steps[at - 1].argval or ()))
    any_name = not BY_NAME.isdisjoint(loaded | attributes)
    taken = Attributes(frozenset(attributes), frozenset(passed), any_name)
    return Names(frozenset(loaded), taken, frozenset(imported))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from (it for it in dis.get_instructions(code) if it.opname != "EXTENDED_ARG")
    for it in code.co_consts:
        if isinstance(it, CodeType):
            yield from _instructions(it)


def _all(attributes: Attributes) -> Attributes:
    return attributes._replace(any_name=True)
