"""Tables of results, in terminals and pipes of any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from weighbridge.trainers.bench.table import COLUMNS
from weighbridge.verbs import output

ROWS = [
    ["mlx eager, evaluated each step", "16", "1,181.01", "97.48", "1.00", "255.66", "1.00"],
    ["mlx float32 batch 16", "16", "62.31", "249.13", "2.56", "255.74", "1.00"],
]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 300])
def test_no_figure_of_a_table_is_cut_or_broken(width, terminal, monkeypatch):
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=terminal, no_color=True)
    monkeypatch.setattr(output, "out", lambda: console)
    columns = [*COLUMNS][:7]
    output.show_table(columns, ROWS)
    text = written.getvalue()
    for it in [*columns[1:], *(cell for row in ROWS for cell in row)]:
        assert it in text.replace("\n", " " if terminal else "\n")
