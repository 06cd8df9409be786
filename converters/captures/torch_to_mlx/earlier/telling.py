"""What a module is made of, told in words that are the same in every process, or not at all.

Code counts as known where it is installed, of some version, or ours, by its text. Whatever else there is, a
function of the user's, one put in the place of a library's, an object of an unknown kind, is not told.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from ....common.users_code import NOT_OURS, is_installed

PLAIN: Final = (
    bool,
    int,
    float,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    enum.Enum,
)
ROOT: Final = Path(__file__).parents[4]
BUILT_IN: Final = frozenset({*sys.builtin_module_names, "pybind11_builtins"})
COMPILED: Final = (
    "__compiled_fn_"  # what torch.compile puts beside the code that it compiled, under a new name
)
ATTENTIONS: Final = (None, "eager", "sdpa")  # transformers keeps users' beside its own


class UnknownError(Exception):
    """It cannot be told whether something is what it was."""


def settings_of(value: Any) -> str:
    """Tell VALUE, an attribute of a module.

    >>> settings_of({"eps": 1e-5, "axes": (0, 1)})
    "dict {'eps': float 1e-05, 'axes': tuple [int 0, int 1]}"

    Raises:
        UnknownError: it is of no known kind.
    """
    kind = type(value).__name__
    if isinstance(value, PLAIN):
        return f"{kind} {value!r}"
    if isinstance(value, Mapping):
        items = (f"{key!r}: {settings_of(it)}" for key, it in value.items())
        return f"{kind} {{{', '.join(items)}}}"
    if isinstance(value, tuple | list):
        return f"{kind} [{', '.join(map(settings_of, value))}]"
    if isinstance(value, set | frozenset):
        return f"{kind} {sorted(map(settings_of, value))}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    return _object(value)


def _tensor(value: torch.Tensor) -> str:
    data = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tuple(value.shape)} {value.dtype} {hashlib.sha256(data).hexdigest()}"


def _object(value: Any) -> str:
    if isinstance(value, type):
        return code_of(value)
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return text_of(value)
    if isinstance(value, functools.partial):
        return f"{text_of(value.func)} {settings_of(value.args)} {settings_of(value.keywords)}"
    if hasattr(value, "to_dict"):
        return _configuration(value)
    raise UnknownError(type(value))


def _configuration(value: Any) -> str:
    attention = getattr(value, "_attn_implementation", None)
    if not isinstance(attention, dict) and attention not in ATTENTIONS:
        raise UnknownError(attention)
    own = {name: it for name, it in vars(value).items() if isinstance(it, PLAIN)}
    text = json.dumps([value.to_dict(), own], sort_keys=True, default=settings_of)
    return f"{code_of(type(value))} {text} {attention!r}"


def text_of(function: Any) -> str:
    """Tell FUNCTION by its name; it and what it wraps have to be installed, or ours.

    Raises:
        UnknownError: it is a user's, or made of values that are not seen.
    """
    function = getattr(function, "__func__", function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if isinstance(function, BuiltinFunctionType) or type(function).__module__ == "nanobind":
        return name
    if type(function).__module__ == "operator":
        return repr(function)
    for it in _with_wrapped(function, {}):
        if not isinstance(it, FunctionType) or not _is_known(_file_of(it)):
            raise UnknownError(name)
    return name


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


def _file_of(function: FunctionType) -> str:
    """Return where FUNCTION is written; of one that was made from text, the module for which it was made."""
    file = function.__code__.co_filename
    if not file.startswith("<"):
        return file
    maker = sys.modules.get(str(function.__module__))
    if maker is not None:
        return str(getattr(maker, "__file__", ""))
    return collections.__file__ if file == "<string>" else ""  # as named tuples are made


@cache
def _is_known(file: str) -> bool:
    """Tell whether FILE is installed, or ours."""
    path = Path(file)
    ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in NOT_OURS
    return path.is_absolute() and (is_installed(path) or ours)


def code_of(kind: type) -> str:
    """Tell the class KIND by its name, and by those of functions that have another's place in it.

    Raises:
        UnknownError: it, or a part of it, is a user's.
    """
    borrowed = (it for base in kind.__mro__[:-1] for it in _borrowed(base))
    return " ".join([f"{kind.__module__}.{kind.__qualname__}", *borrowed])


def _borrowed(kind: type) -> Iterator[str]:
    """Yield the functions of KIND itself, nothing it inherits, that have another's name; all have to be known."""
    place = f"{kind.__module__}.{kind.__qualname__}"
    if not _is_ours(kind.__module__):
        raise UnknownError(place)
    for name, value in vars(kind).items():
        for function in _functions(value):
            text = text_of(function)
            if text != f"{place}.{name}":
                yield f"{place}.{name}={text}"


def _is_ours(module: str) -> bool:
    """Tell whether MODULE is built in, installed, or ours."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None and "." in module:  # a part of an extension
        return _is_ours(module.rpartition(".")[0])
    return module in BUILT_IN if file is None else _is_known(file)


def _functions(value: Any) -> list[Any]:
    """Return the functions that VALUE, an entry of a class, calls."""
    if isinstance(value, property):
        return [it for it in (value.fget, value.fset, value.fdel) if it is not None]
    function = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    return [function] if isinstance(function, FunctionType | BuiltinFunctionType) else []


def places_of(modules: Iterable[str]) -> Iterator[str]:
    """Tell which functions and classes MODULES have under which names, and those of modules of theirs.

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
            if key.startswith(COMPILED):
                continue
            if issubclass(kind, FunctionType | BuiltinFunctionType | type):
                owner = str(value.__module__)
                yield f"{name}.{key}={owner}.{value.__qualname__}"
                waiting += [owner] if owner.partition(".")[0] == package != "torch" else []
            elif kind is functools.partial:
                yield f"{name}.{key}={settings_of(value)}"


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
        text_of(value)
    elif issubclass(kind, type):
        for base in value.__mro__[:-1]:
            if id(base) not in seen or base is value:
                seen.add(id(base))
                collections.deque(_borrowed(base), maxlen=0)
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
                text_of(value)


@cache
def own_text() -> str:
    """Return a hash of our own code."""
    packages = (
        it for it in ROOT.iterdir() if it.name not in NOT_OURS and (it / "__init__.py").exists()
    )
    files = sorted(file for package in packages for file in package.rglob("*.py"))
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()
