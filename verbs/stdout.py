"""Standard output is for results: whatever else is printed while a verb runs goes to stderr."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, ParamSpec

import click

STDOUT: Final = f"{__name__}.stream"  # the stream, in click's ``meta``
BEFORE: Final = f"{__name__}.before"  # what is called before a result is printed
Arguments = ParamSpec("Arguments")


def keep_stdout(group: click.Group) -> None:
    """Keep stdout for the results of all verbs of GROUP: libraries and a user's code print there too."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            keep_stdout(command)
        elif command.callback:
            command.callback = kept(command.callback)


def kept(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return VERB with stdout led to stderr, but for what `result` shows."""

    @functools.wraps(verb)
    def called(*arguments: Any, **options: Any) -> Any:
        click.get_current_context().meta[STDOUT] = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            return verb(*arguments, **options)

    return called


def result(show: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Let SHOW print to stdout in a verb."""

    @functools.wraps(show)
    def shown(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        context = click.get_current_context(silent=True)
        stream = context.meta.get(STDOUT, sys.stdout) if context else sys.stdout
        if context and BEFORE in context.meta:
            context.meta[BEFORE]()
        with contextlib.redirect_stdout(stream), printing(stream):
            show(*arguments, **options)

    return shown


@contextlib.contextmanager
def printing(stream: IO[str] | None) -> Iterator[None]:
    """Go on where nobody reads STREAM any more, as behind ``| head``: the exit code still is the answer.

    Raises:
        OSError: nothing can be written there; it names the stream.
    """
    try:
        yield
    except (
        BrokenPipeError,
        SystemExit,
    ):  # rich ends the process of a closed pipe, by a code of its own
        if stream:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        name = "standard error" if stream is sys.stderr else "standard output"
        raise OSError(error.errno, error.strerror, name) from error
