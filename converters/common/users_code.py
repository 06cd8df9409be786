"""Code that a user names: what it raises is the user's error, reported with the last of their own lines."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CellType, FrameType, FunctionType, TracebackType
from typing import Any, Final, TypeVar

from ...errors import UsersCodeError, WeighbridgeError, legible
from .memory import ran_out

OURS: Final = __name__.partition(".")[0]
# Beside the package lie folders that hold what users write.
NOT_OURS: Final = frozenset({"benchmarks", "examples", "tests"})
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
LONGEST: Final = 400  # characters of a message
# Operations in messages of exporters: <OpOverload(op='aten.sin'...)>, ops: aten.sin.default, op: target: sin.default.
NAMED: Final = re.compile(r"(?:op='|ATen ops: |, (?=aten\.)|op: target: )(\w+(?:\.\w+)*)")
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal
T = TypeVar("T")
_named: set[Path] = set()  # files and folders of the code that users named


def name_module(module: str) -> None:
    """Remember where the code of MODULE lies: itself, and what lies beside it but is not installed."""
    _named.add(Path.cwd())
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module.partition(".")[0])
        if found and found.origin and found.submodule_search_locations:
            _named.add(Path(found.origin).parent)
        elif found and found.origin:
            place = Path(found.origin)
            _named.add(place if is_installed(place) else place.parent)


@contextlib.contextmanager
def telling_users_faults(*passing: type[BaseException]) -> Iterator[None]:
    """Turn what a user's code raises in the block into one line, but for what is PASSING.

    Raises:
        UsersCodeError: the innermost frame that is ours or the user's is the user's.
    """
    _named.clear()
    others: tuple[type[BaseException], ...] = (KeyboardInterrupt, GeneratorExit, UsersCodeError)
    try:
        yield
    except (*others, *passing):
        raise
    except BaseException as error:
        line = None if ran_out(error) else fault_of(error)
        if line is None:
            raise
        raise UsersCodeError(line) from error


def fault_of(error: BaseException) -> str | None:
    """Return the last of the user's own lines and what was raised there; ``None`` for a bug of ours."""
    place = innermost(error.__traceback__)
    return None if place in {None, OURS} else f"{place}: {described(error)}"


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Tell what the code of WHAT, a library's or a user's module, raises in the block as one line.

    Raises:
        UsersCodeError: it raised; WHAT, the last of the user's own lines if there is one, and the error.
    """
    try:
        yield
    except WeighbridgeError:
        raise
    except Exception as error:
        if ran_out(error) or raised_by_us(error):
            raise
        raise UsersCodeError(
            f"{what} does not run: {fault_of(error) or described(error)}"
        ) from error


def called(what: str, function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return what FUNCTION, a user's, makes of what it is GIVEN and of OPTIONS.

    Raises:
        UsersCodeError: it does not take them, or raises; begins with WHAT it is.
    """
    try:
        inspect.signature(function).bind(*given, **options)
    except TypeError as error:
        raise UsersCodeError(f"{what} cannot be called: {error}") from None
    except ValueError:
        pass  # nothing says what it takes; calling it will
    with running(what):
        return function(*given, **options)


def raised_by_us(error: BaseException) -> bool:
    """Say whether a line of this package raised ERROR, other than by calling somebody's module."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and is_ours(frames[-1])


def innermost(frames: TracebackType | None) -> str | None:
    """Return the ``FILE:LINE`` of the innermost of FRAMES if that is the user's, OURS if it is ours.

    Frames of libraries count as whoever called them.
    """
    place = None
    for frame, line in traceback.walk_tb(frames):
        if is_ours(frame):
            place = OURS
        elif is_theirs(frame):
            place = f"{shown(frame.f_code.co_filename)}:{line}"
    return place


def described(error: BaseException) -> str:
    r"""Return the type and message of ERROR on one line.

    >>> described(ValueError("no\nsuch size")), described(KeyError())
    ('ValueError: no such size', 'KeyError')
    """
    text = legible(" ".join(message_of(error).split()), LONGEST)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of ERROR's message that is not empty; of an empty one its type."""
    lines = (line.strip() for line in message_of(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


def untranslated(error: BaseException) -> str:
    """Return what an exporter's ERROR says: the operations that it names, or its first line.

    >>> untranslated(ValueError("unsupported ATen ops: aten.polygamma.default. Use a lowering"))
    'no translation of aten.polygamma; rewrite the model without it'
    """
    named = sorted({found[1].removesuffix(".default") for found in NAMED.finditer(str(error))})
    return (
        f"no translation of {', '.join(named)}; rewrite the model without {'them' if named[1:] else 'it'}"
        if named
        else first_line(error)
    )


def message_of(error: BaseException) -> str:
    r"""Return the message of ERROR without the colours that some libraries give it.

    >>> message_of(ValueError("\x1b[96mstep 3\x1b[0m of 3"))
    'step 3 of 3'
    """
    return COLOURS.sub("", str(error))


def is_ours(frame: FrameType) -> bool:
    """Say whether FRAME runs code of this package that does more than pass a call on."""
    package, _, rest = frame.f_globals.get("__name__", "").partition(".")
    passes_on = frame.f_code.co_name in ("__torch_function__", "__torch_dispatch__")
    return package == OURS and rest.partition(".")[0] not in NOT_OURS and not passes_on


def is_theirs(frame: FrameType) -> bool:
    """Say whether FRAME runs code of the user's."""
    return is_users(frame.f_code.co_filename)


def is_users(file: str) -> bool:
    """Say whether FILE is code that a user named, or lies beside it."""
    path = Path(os.path.abspath(file))  # noqa: PTH100  # links stay as they are
    return path.is_file() and any(
        path.is_relative_to(place) and (is_installed(place) or not is_installed(path))
        for place in _named
    )


def is_installed(path: Path) -> bool:
    """Say whether PATH belongs to Python or to an installed package."""
    standard = sysconfig.get_paths()["stdlib"]
    return bool(INSTALLED & {*path.parts}) or path.is_relative_to(standard)


def shown(file: str) -> str:
    """Return FILE as a person in the working directory would write it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@contextlib.contextmanager
def kept_apart() -> Iterator[None]:
    """Let what the block prints go to stderr, and put the working directory back after it."""
    here = Path.cwd()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.chdir(here)


def deep_copied(things: T, modules: Iterable[Any], known: dict[int, Any] | None = None) -> T:
    """Return ``copy.deepcopy(things, known)`` whose functions have of the copy what the others have of THINGS.

    Python shares functions between a module and its copy, so that a hook that puts something aside in ``self``
    goes on putting it into the first one. What a function has from elsewhere stays as it is.

    Args:
        things: what is copied.
        modules: those of PyTorch in it, whose hooks and attributes may be functions.
        known: by id what a copy has in place of things, as ``copy.deepcopy`` takes it; it gets all others.
    """
    memo = {} if known is None else known
    twins = {it: _twin(it) for it in _functions(modules)}
    memo.update({id(old): new for old, new in twins.items()})
    made = copy.deepcopy(things, memo)
    for old, new in twins.items():
        for ours, theirs in zip(old.__closure__ or (), new.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                theirs.cell_contents = memo.get(id(ours.cell_contents), ours.cell_contents)
    return made


def _functions(modules: Iterable[Any]) -> set[FunctionType]:
    """Return the functions that MODULES and their parts hold and that have something from where they were written."""
    held = (value for module in modules for part in module.modules() for value in _values(part))
    waiting, found = [*held], set()
    while waiting:
        it = waiting.pop()
        if isinstance(it, FunctionType) and it.__closure__ and it not in found:
            found.add(it)
            waiting += _enclosed(it)
    return found


def _values(part: Any) -> Iterator[Any]:
    for value in vars(part).values():
        yield from value.values() if isinstance(value, dict) else [value]


def _enclosed(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _twin(function: FunctionType) -> FunctionType:
    """Return FUNCTION once more, with nothing yet from where it was written."""
    cells = tuple(CellType() for _ in function.__closure__ or ())
    twin = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    twin.__kwdefaults__, twin.__qualname__ = function.__kwdefaults__, function.__qualname__
    vars(twin).update(vars(function))
    return twin
