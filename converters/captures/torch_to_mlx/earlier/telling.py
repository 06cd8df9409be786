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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
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
    """Tell FUNCTION by its name, and by its text where it is ours.

    Raises:
        UnknownError: it is a user's, or made of values that are not seen.
    """
    function = getattr(function, "__func__", function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if isinstance(function, BuiltinFunctionType) or type(function).__module__ == "nanobind":
        return name
    if not isinstance(function, FunctionType) or not _is_known(_file_of(function)):
        raise UnknownError(name)
    return name


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
    """Tell the class KIND by its name; all that it inherits has to be known.

    Raises:
        UnknownError: a part of it is not.
    """
    for base in kind.__mro__[:-1]:
        for value in vars(base).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                text_of(function)
    return f"{kind.__module__}.{kind.__qualname__}"


def check_package(package: str) -> None:
    """Refuse a PACKAGE of which a loaded function, method or registered function is not its own.

    Raises:
        UnknownError: one is a user's, put in the place of another.
    """
    loaded = [it for name, it in [*sys.modules.items()] if name.partition(".")[0] == package]
    seen: set[int] = set()
    for module in loaded:
        for value in list(vars(module).values()):
            if id(value) not in seen:
                seen.add(id(value))
                _check(value)


def _check(value: Any) -> None:
    kind = type(
        value
    )  # isinstance would ask the value itself, which may warn or load what it stands for
    if issubclass(kind, FunctionType):
        text_of(value)
    elif issubclass(kind, type):
        code_of(value)
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
