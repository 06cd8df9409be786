"""The picture of a benchmark: speed and memory of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..plots import BLUE, ORANGE, figure_of, save


def plot_rows(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw samples a second and peak memory of ROWS that were run, as bars.

    Args:
        rows: of the table.
        path: PNG to write; none is written where no row was run.
    """
    run = [row for row in rows if "not_run" not in row][::-1]
    if not run:
        return
    figure = figure_of(9, 1.2 + 0.4 * len(run))
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["row"] for row in run]
    for axis, key, label, colour in (
        (left, "samples_per_second", "examples / s", BLUE),
        (right, "peak_memory_mb", "peak memory (MB)", ORANGE),
    ):
        bars = axis.barh(names, [row[key] for row in run], color=colour, height=0.6)
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)
