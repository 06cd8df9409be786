"""A run on a terminal: what changes is in one line, what stays is above it."""

from __future__ import annotations

import io

from weighbridge.trainers.runs.events import Notice, Started, Updated, Validated
from weighbridge.verbs.training.view import TrainingView


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_line_shows_how_far_the_run_is_and_lines_stay_above_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    with TrainingView(terminal) as view:
        view(Started(0, 3, 3))
        view(Validated(0, {"loss": 2.0}, True))
        for step in (1, 2):
            view(Updated(step, 0, 8, 1.0 / step, 1e-3, 0.5, False, peak_memory_mb=12.0))
        view(Notice("take [note]"))
        view(Updated(3, 0, 8, 0.1, 1e-3, 0.5, True))
    written = terminal.getvalue()
    for text in (*("validation loss 2.0000 (best)", "take [note]", "3/3", "step 3  skipped"),):
        assert text in written
