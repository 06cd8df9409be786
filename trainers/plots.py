"""The pictures of a run: loss and the figure that chooses the best checkpoint; speed and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .runs.journal import Record

BLUE, ORANGE, GREY = "#2a6f97", "#e07a1f", "#8a8a8a"
MEMORY: Final = (("peak_memory_mb", "peak of the backend", ORANGE), ("process_mb", "process", GREY))
SMALLEST: Final = 1e-9  # difference that is drawn where there is none
SMOOTH: Final = 0.9  # weight of the past in the drawn mean of the loss


def smooth(values: Sequence[float], weight: float = SMOOTH) -> list[float]:
    """Return the exponential mean of VALUES, corrected for its start (Kingma and Ba 2015, section 3).

    >>> smooth([2.0, 2.0, 2.0])
    [2.0, 2.0, 2.0]
    """
    means, total, norm = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        means.append(total / norm)
    return means


def figure_of(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write FIGURE to the PNG file PATH; ``savefig`` would draw it twice."""
    figure.canvas.print_png(path)


def plot_run(
    records: Sequence[Record], metric: str, path: Path, *, best: int | None = None
) -> None:
    """Draw training and validation loss, and METRIC below where it is another figure.

    Args:
        records: of the journal.
        metric: figure of the validation split.
        path: PNG to write.
        best: step of the best checkpoint, marked.
    """
    two = metric != "loss"
    figure = figure_of(7, 5.2 if two else 3.4)
    panels = figure.subplots(
        2 if two else 1, sharex=True, squeeze=False, height_ratios=[3, 2] if two else None
    )
    axes = [row[0] for row in panels]
    _draw_loss(axes[0], records)
    if two:
        _draw_metric(axes[1], records, metric)
    for axis in axes:
        _tidy(axis, best)
    axes[-1].set_xlabel("step")
    axes[0].legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2
    )
    save(figure, path)


def plot_speed(records: Sequence[Record], path: Path) -> None:
    """Draw examples a second, memory, and the size of batches where it varies.

    Args:
        records: of the journal.
        path: PNG to write; none is written where there is no update.
    """
    updates = [record for record in records if "samples_per_second" in record]
    if not updates:
        return
    varies = len({record["batch_size"] for record in updates}) > 1
    figure = figure_of(7, 6.4 if varies else 4.8)
    panels = figure.subplots(3 if varies else 2, sharex=True)
    steps = [record["step"] for record in updates]
    speeds = [record["samples_per_second"] for record in updates]
    panels[0].plot(steps, speeds, color=BLUE, alpha=0.3, linewidth=0.8)
    panels[0].plot(steps, smooth(speeds), color=BLUE, linewidth=1.6)
    panels[0].set_ylabel("examples / s")
    for name, label, colour in MEMORY:
        panels[1].plot(steps, [record[name] for record in updates], color=colour, label=label)
    panels[1].set_ylabel("memory (MB)")
    panels[1].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    if varies:
        panels[2].step(steps, [record["batch_size"] for record in updates], color=GREY, where="mid")
        panels[2].set_ylabel("batch size")
    for axis in panels:
        axis.set_ylim(bottom=0)
        _tidy(axis, None)
    panels[-1].set_xlabel("step")
    save(figure, path)


def plot_comparison(losses: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw the losses of two runs by their names, and below how far they are apart.

    Args:
        losses: of every update.
        path: PNG to write.
    """
    figure = figure_of(7, 5.2)
    above, below = figure.subplots(2, sharex=True, height_ratios=[3, 2])
    for (name, values), style in zip(losses.items(), ((BLUE, "-"), (ORANGE, "--")), strict=True):
        steps = range(1, len(values) + 1)
        above.plot(steps, values, color=style[0], linestyle=style[1], label=name)
    apart = [abs(one - other) for one, other in zip(*losses.values(), strict=True)]
    below.semilogy(steps, [max(it, SMALLEST) for it in apart], color=GREY, marker=".")
    above.set_ylabel("loss")
    below.set_ylabel("difference")
    below.set_xlabel("step")
    above.legend(frameon=False)
    for axis in (above, below):
        _tidy(axis, None)
    save(figure, path)


def _draw_loss(axis: Any, records: Sequence[Record]) -> None:
    updates = [
        (record["step"], record["loss"]) for record in records if record.get("loss") is not None
    ]
    if updates:
        steps, losses = zip(*updates, strict=True)
        axis.plot(steps, losses, color=BLUE, alpha=0.3, linewidth=0.8)
        axis.plot(steps, smooth(losses), color=BLUE, linewidth=1.6, label="training (mean)")
    _draw_validation(axis, records, "loss", "validation")
    axis.set_ylabel("loss")


def _draw_metric(axis: Any, records: Sequence[Record], metric: str) -> None:
    _draw_validation(axis, records, metric, metric)
    axis.set_ylabel(metric.replace("_", " "))


def _draw_validation(axis: Any, records: Sequence[Record], name: str, label: str) -> None:
    rows = [
        (record["step"], record["validation"][name])
        for record in records
        if name in record.get("validation", ())
    ]
    rows = [row for row in rows if row[1] is not None]
    if rows:
        axis.plot(
            *zip(*rows, strict=True),
            color=ORANGE,
            marker="o",
            markersize=4,
            linewidth=1.4,
            label=label,
        )


def _tidy(axis: Any, best: int | None) -> None:
    axis.xaxis.get_major_locator().set_params(integer=True)  # there is no half of an update
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    axis.margins(x=0.02)
    if best is not None:
        axis.axvline(best, color=GREY, linestyle=":", linewidth=1, label="best checkpoint")
