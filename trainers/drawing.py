"""What all pictures share: a figure that is drawn in memory, and how it becomes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
