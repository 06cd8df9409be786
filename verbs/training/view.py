"""A training run on a terminal: one line that changes, with plain lines above it for what stays."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from ...converters.common.steps import LOGGER
from ..progress import DISPLAY, SWITCH

if TYPE_CHECKING:
    from ...trainers.runs.events import Event


def is_wanted() -> bool:
    """Return whether stderr is a terminal that may be shown a line that changes."""
    return sys.stderr.isatty() and os.environ.get(SWITCH) != "off"


class TrainingView:
    """Shows the events of a run while a ``with`` block runs.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (
            BarColumn(24),
            MofNCompleteColumn(),
            Remaining(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns, console=Console(file=stream), transient=True)
        self._task: Any = None
        self._level = LOGGER.level

    def __enter__(self) -> Self:
        """Begin; the line is there from the first update on."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the line away."""
        self._progress.stop()
        if self._task is not None:
            LOGGER.setLevel(self._level)

    def __call__(self, event: Event) -> None:
        """Show EVENT."""
        from ...trainers.runs import events

        if isinstance(event, events.Started):
            self._start(event)
        elif isinstance(event, events.Updated):
            text = events.describe_update(event)
            self._progress.update(self._task, completed=event.step, description=text)
            if event.skipped:
                self._line(f"step {event.step}  {text}")
        elif isinstance(event, events.Validated):
            self._line(f"step {event.step}  {events.describe_validation(event)}")
        else:
            self._line(event.text)

    def _start(self, event: Any) -> None:
        """Take the terminal from the display of steps, which has a line of its own."""
        import click

        context = click.get_current_context(silent=True)
        display = context.meta.get(DISPLAY) if context else None
        if display:
            display.stop()
        self._level = LOGGER.level
        LOGGER.setLevel(logging.WARNING)
        self._task = self._progress.add_task("", total=event.steps, completed=event.step)
        self._progress.start()

    def _line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
