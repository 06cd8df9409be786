"""Which code is known by its name: what is installed, of some version, or ours, by its text."""

from __future__ import annotations

import collections
import hashlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from ....common.users_code import NOT_OURS, is_installed

ROOT: Final = Path(__file__).parents[4]
BUILT_IN: Final = frozenset({*sys.builtin_module_names, "pybind11_builtins"})
# What libraries make anew in every process; it is part of no result.
PER_PROCESS: Final = frozenset({"SESSION_ID", "_autograd_function_id", "_original_object_hash"})
COMPILED: Final = (
    "__compiled_fn_"  # what torch.compile puts beside the code that it compiled, under a new name
)


class UnknownError(Exception):
    """It cannot be told whether something is what it was."""


def place_of(thing: Any) -> str:
    """Return the module and name of THING, a function or a class, as it says itself."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def is_known(function: Any) -> bool:
    """Tell whether FUNCTION, one of Python's, is written in a file that is installed, or ours."""
    return isinstance(function, FunctionType) and _is_known(_file_of(function))


def _file_of(function: FunctionType) -> str:
    """Return where FUNCTION is written; of one that was made from text, the module for which it was made."""
    file = function.__code__.co_filename
    if not file.startswith("<"):
        return file
    maker = sys.modules.get(str(function.__module__))
    if maker is not None:
        return str(getattr(maker, "__file__", ""))
    maker_has_no_name = str(function.__module__).startswith(("None", "namedtuple_"))
    return collections.__file__ if maker_has_no_name else ""  # as named tuples are made


@cache
def _is_known(file: str) -> bool:
    """Tell whether FILE is installed, or ours."""
    path = Path(file)
    ours = any(path.is_relative_to(it) for it in _packages())
    return path.is_absolute() and (is_installed(path) or ours)


@cache
def _packages() -> list[Path]:
    """Return the folders of our own packages: others beside them are users'."""
    found = (it for it in ROOT.iterdir() if it.name not in NOT_OURS)
    return [it for it in found if (it / "__init__.py").exists()]


def is_known_module(name: str) -> bool:
    """Tell whether the module of this NAME is built in, installed, or ours."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and "." in name:  # a part of an extension
        return is_known_module(name.rpartition(".")[0])
    return name in BUILT_IN if file is None else _is_known(file)


def is_to_be_loaded(name: str) -> bool:
    """Tell whether the module of this NAME is of a library that is installed, and not loaded yet."""
    top = name.partition(".")[0]
    found = None if top in sys.modules or is_standard(top) else find_spec(top)
    return found is not None and found.origin is not None and _is_known(found.origin)


def is_standard(name: str) -> bool:
    """Tell whether the module of this NAME is of Python's own library.

    >>> is_standard("os.path"), is_standard("torch.nn")
    (True, False)
    """
    return name.partition(".")[0] in sys.stdlib_module_names


def is_at_its_place(thing: Any) -> bool:
    """Tell whether THING is what a library's module has under its name, and was not made by a user's call."""
    found: Any = sys.modules.get(str(thing.__module__))
    if not is_known_module(str(thing.__module__)):
        return False
    for part in str(thing.__qualname__).split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
        found = getattr(found, "__func__", found)
    return found is thing


@cache
def own_text() -> str:
    """Return a hash of our own code."""
    files = sorted(file for package in _packages() for file in package.rglob("*.py"))
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()
