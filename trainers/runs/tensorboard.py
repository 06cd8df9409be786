"""The figures of a run for TensorBoard, where the configuration asks for them."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from .events import Event, Progress, Started, Updated, Validated

FOLDER: Final = "tensorboard"
UNDRAWN: Final = frozenset({"step", "skipped"})


class TensorBoard:
    """Passes events on to PROGRESS and writes their numbers below OUT.

    Raises:
        BadInputError: the package that writes them is not installed.
    """

    def __init__(self, out: Path, progress: Progress) -> None:
        try:
            tensorboard: Any = import_module("tensorboardX")
        except ImportError:
            raise BadInputError(
                "tensorboard=true needs a package: pip install weighbridge[tensorboard]"
            ) from None
        self._make, self._folder, self._progress = (
            tensorboard.SummaryWriter,
            out / FOLDER,
            progress,
        )
        self._writer: Any = None
        self._again_from: int | None = None

    def __call__(self, event: Event) -> None:
        """Write the numbers of EVENT; what a resumed run does again replaces what it had done."""
        if isinstance(event, Started):
            self._again_from = event.step + 1
        elif isinstance(event, Updated):
            figures = event._asdict().items()
            self._write("train", event.step, {k: v for k, v in figures if k not in UNDRAWN})
        elif isinstance(event, Validated):
            self._write("validation", event.step, event.metrics)
            self._writer.close()  # which writes all of it; what follows goes to another file
            self._writer = None
        self._progress(event)

    def _write(self, group: str, step: int, figures: Any) -> None:
        if self._writer is None:
            names = {"filename_suffix": f".{time.time_ns()}", "purge_step": self._again_from}
            self._writer, self._again_from = self._make(str(self._folder), **names), None
        for name, value in figures.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, step)
