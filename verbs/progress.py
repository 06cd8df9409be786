"""What a verb is doing, on stderr: a live line on a terminal; elsewhere a plain line for what takes its time."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click

from ..converters.common.steps import LOGGER
from .stdout import BEFORE

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE: Final = 1.0  # seconds that a step may take before a line is written about it
SWITCH: Final = "WEIGHBRIDGE_PROGRESS"  # "off" writes none
DISPLAY: Final = f"{__name__}.display"  # in click's ``meta``


class Display(logging.Handler):
    """Shows the step that runs, and how far it is."""

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__(logging.INFO)
        self.patience = patience
        self._stream = sys.stderr  # libraries that are kept quiet are led elsewhere meanwhile
        self._timer: threading.Timer | None = None
        self._task: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Show the step in RECORD in place of the one before."""
        self.step(record.getMessage())

    def step(self, what: str) -> None:
        """Show that WHAT runs now."""
        self.task(what, None)

    def task(self, what: str, total: int | None) -> Callable[[int], None]:
        """Show that WHAT runs now, of TOTAL bytes if they are known; return what advances it."""
        self.stop()
        if not self.live:
            self._later(f"{what} ...")
            return lambda _amount: None
        self.progress.start()
        self._task = task = self.progress.add_task(what, total=total)
        return lambda amount: self.progress.advance(task, amount)

    def stop(self) -> None:
        """Show nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self.progress.remove_task(self._task)
            self.progress.stop()
        self._timer = self._task = None

    def _later(self, line: str) -> None:
        """Write LINE once the step has taken long enough."""
        self._timer = threading.Timer(self.patience, click.echo, [line], {"file": self._stream})
        self._timer.daemon = True
        self._timer.start()

    @cached_property
    def live(self) -> bool:
        """Whether a terminal may be shown a line that changes; a plain file is known without rich."""
        forced = {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys()
        return bool(self._stream.isatty() or forced) and self.progress.console.is_terminal

    @cached_property
    def progress(self) -> Progress:
        """The live line; bytes are shown where they are counted."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            Task,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.text import Text

        class Bytes(DownloadColumn):
            def render(self, task: Task) -> Text:
                return Text() if task.total is None else super().render(task)

        console = Console(file=self._stream)
        columns = (TextColumn("{task.description}"), BarColumn(), Bytes(), TimeElapsedColumn())
        return Progress(*columns, console=console, transient=True)


@contextmanager
def shown(context: click.Context) -> Iterator[None]:
    """Show the steps of what runs in the block, up to the first result that is printed."""
    if os.environ.get(SWITCH) == "off":
        yield
        return
    display, level = Display(PATIENCE), LOGGER.level
    context.meta.update({DISPLAY: display, BEFORE: display.stop})
    LOGGER.addHandler(display)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(display)
        LOGGER.setLevel(level)
        display.stop()


def report(what: str, total: int) -> Callable[[int], None]:
    """Show a step of TOTAL bytes in the display of the verb that runs; return what advances it."""
    display = click.get_current_context().meta.get(DISPLAY)
    return display.task(what, total) if display else lambda _amount: None
