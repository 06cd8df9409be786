"""The picture of memory over a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..plots import figure_of, save
from .readings import Sample

COLOURS: Final = {
    "process": "#2a6f97",
    "mlx_active": "#e07a1f",
    "mlx_cache": "#e9c46a",
    "torch_active": "#2a9d8f",
    "torch_reserved": "#a3d5cd",
}
NEAR: Final = 2.0  # a limit up to so many times the peak is drawn


def plot_memory(samples: Sequence[Sample], path: Path, *, limit: int | None = None) -> None:
    """Draw process and framework memory over seconds, and the updates as marks.

    Args:
        samples: in the order in which they were taken.
        path: PNG to write.
        limit: bytes there are; drawn where the peak comes near it.
    """
    figure = figure_of(7, 3.4)
    axis: Any = figure.subplots()
    most = 0.0
    for name, colour in COLOURS.items():
        rows = [(it.seconds, it.bytes[name] / 1e6) for it in samples if name in it.bytes]
        if rows:
            axis.plot(
                *zip(*rows, strict=True), color=colour, linewidth=1.3, label=name.replace("_", " ")
            )
            most = max(most, *(size for _, size in rows))
    if limit is not None and limit / 1e6 <= NEAR * most:
        axis.axhline(limit / 1e6, color="#8a8a8a", linestyle=":", linewidth=1, label="limit")
    axis.set(xlabel="seconds", ylabel="MB", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)
    save(figure, path)
