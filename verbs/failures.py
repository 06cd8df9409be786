"""What a command that failed prints: lines on stderr, or one JSON document on stdout, and its exit code."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from typing import IO, Any, Final, NamedTuple

import click

from .. import errors
from ..converters.common import memory
from ..converters.common.exits import Exit
from ..converters.common.os_errors import explained
from ..errors import (
    DETAIL,
    SUMMARY,
    MismatchError,
    StoppedElsewhereError,
    Terminated,
    TooLittleMemoryError,
    WeighbridgeError,
    legible,
)
from .options import missing_package
from .stdout import printing


class Kind(NamedTuple):
    """A kind of failure: its name in JSON, its exit code, and what it means."""

    kind: str
    code: Exit
    means: str


OTHERS: Final = (
    Kind("missing-package", Exit.FAILED, "A package is not installed that this needs."),
    Kind(
        "system",
        Exit.FAILED,
        "Refused by the system: a full disk, a forbidden file, a target in use.",
    ),
    Kind("usage", Exit.USAGE, "An unknown option or verb, a missing or impossible argument."),
    Kind("bug", Exit.BUG, "A bug in Weighbridge; its traceback is on stderr."),
    Kind("interrupted", Exit.INTERRUPTED, "Ctrl-C."),
    Kind("terminated", Exit.TERMINATED, "SIGTERM or SIGHUP."),
)
CODES: Final = {row.kind: row.code for row in OTHERS}


class Failed(click.ClickException):
    """A failure, ready to be shown.

    Attributes:
        kind: one of ``kinds()``.
        problems: what is wrong, a line each, where there is a list.
        shown: the lines for a person.
    """

    def __init__(
        self, kind: str, message: str, problems: Sequence[str] = (), shown: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.problems = kind, tuple(problems)
        self.shown = f"Error: {message}" if shown is None else shown
        self.as_json = False

    @property
    def exit_code(self) -> Exit:  # type: ignore[override]
        """What the command exits with."""
        return CODES.get(self.kind, Exit.FAILED)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it: as JSON on stdout, or for a person on stderr."""
        if not self.shown:
            return
        with printing(sys.stdout if self.as_json else sys.stderr):
            if self.as_json:
                click.echo(json.dumps({"error": self.document()}, indent=1))
            else:
                click.echo(self.shown, file=file, err=True)

    def document(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {
            "kind": self.kind,
            "message": self.message,
            "problems": list(self.problems),
            "exit_code": int(self.exit_code),
        }


@contextmanager
def reporting(*, as_json: bool) -> Iterator[None]:
    """Turn whatever is raised inside into a failure that is reported, as JSON if AS_JSON."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        say_what_is_missing(error)
        if isinstance(error, click.ClickException) and not as_json:
            error.message = legible(error.message)  # type: ignore[misc]  # of any size
            raise  # click shows the usage above it
        failed = failure_of(shortage(error) or error)
        failed.as_json = as_json
        raise failed from error


def say_what_is_missing(error: BaseException) -> None:
    """Let ERROR say what a missing option is, in the words of its help, where click names it alone."""
    option = error.param if isinstance(error, click.MissingParameter) else None
    if isinstance(option, click.Option) and not isinstance(option.type, click.Choice):
        error.message = error.message or f"{option.metavar or ''}: {option.help}"  # type: ignore[attr-defined]


def shortage(error: BaseException) -> TooLittleMemoryError | None:
    """Return what to report of ERROR if memory ran out, whoever noticed it."""
    message = memory.reported(error)
    return TooLittleMemoryError(message) if message else None


@singledispatch
def failure_of(error: BaseException) -> Failed:
    """Return ERROR as a failure; one that no kind takes is a bug."""
    return bug(error)


def bug(error: BaseException) -> Failed:
    """Print the traceback of ERROR, one of our own faults, and return it as a failure."""
    traceback.print_exception(error)
    message = "This is a bug in Weighbridge; please report it with the lines above."
    return Failed("bug", legible(f"{type(error).__name__}: {error}"), shown=message)


@failure_of.register
def _(error: Failed) -> Failed:
    return error


@failure_of.register
def _(error: click.ClickException) -> Failed:
    return Failed("usage", legible(error.format_message()))


@failure_of.register
def _(error: WeighbridgeError) -> Failed:
    message, *problems = str(error).splitlines() or [""]
    return Failed(
        kind_of(type(error)), message, [line.strip() for line in problems], f"Error: {error}"
    )


@failure_of.register
def _(error: StoppedElsewhereError) -> Failed:
    return Failed(kind_of(type(error)), str(error), shown="")


@failure_of.register
def _(error: MismatchError) -> Failed:
    problems = [legible(problem, DETAIL) for problem in error.problems]
    return Failed(
        kind_of(type(error)), legible(error.summary, SUMMARY), problems, f"Error: {error}"
    )


@failure_of.register
def _(error: ModuleNotFoundError) -> Failed:
    message = missing_package(error)
    return Failed("missing-package", message) if message else bug(error)


@failure_of.register
def _(error: OSError) -> Failed:
    line = explained(error)
    return Failed("system", legible(line)) if line else bug(error)


@failure_of.register
def _(error: KeyboardInterrupt) -> Failed:
    message = str(error) or "Interrupted; nothing was left behind."
    return Failed("interrupted", message, shown=message)


@failure_of.register
def _(error: Terminated) -> Failed:
    return Failed("terminated", str(error), shown=str(error))


def kind_of(error: type[WeighbridgeError]) -> str:
    """Return the name that ERROR, or what it is a kind of, has in JSON.

    >>> kind_of(errors.BadInputError)
    'bad-input'
    """
    known = next(base for base in error.__mro__ if base.__module__ == errors.__name__)
    if known is WeighbridgeError:
        return "system"
    name = known.__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def kinds() -> Iterator[Kind]:
    """Yield every kind of failure."""
    for error in vars(errors).values():
        if (
            isinstance(error, type)
            and issubclass(error, WeighbridgeError)
            and error.__bases__ != (Exception,)
        ):
            means = str(error.__doc__).partition("\n")[0].replace("``", "`")
            yield Kind(kind_of(error), Exit.FAILED, means)
    yield from OTHERS
