"""Plain lines for a pipe: few, and about what matters."""

from __future__ import annotations

import io

from weighbridge.trainers.runs.events import Lines, Notice, Started, Updated, Validated


def update(step, skipped=False):
    return Updated(step, 0, 8, 1.0, 1e-3, 0.5, skipped)


def test_an_epoch_takes_about_ten_lines_whatever_its_length():
    for epoch in (10, 100, 1000):
        stream = io.StringIO()
        lines = Lines(stream)
        lines(Started(0, 3 * epoch, epoch))
        for step in range(1, epoch + 1):
            lines(update(step))
        assert stream.getvalue().count("\n") == 11


def test_what_is_unusual_is_never_left_out():
    stream = io.StringIO()
    lines = Lines(stream)
    lines(Started(50, 1000, 1000))
    lines(update(51, skipped=True))
    lines(Validated(52, {"mrr": 0.5}, False))
    lines(Notice("take note"))
    said = stream.getvalue().splitlines()
    assert [line.split("  ")[-1] for line in said] == [
        "training: 1000 steps, from step 50",
        "skipped: the loss or the gradient is not finite",
        "validation mrr 0.5000",
        "take note",
    ]
