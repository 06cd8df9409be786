"""The rows of a benchmark measured, each in a process of its own, and written as a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...converters.common.steps import step as announce
from ...errors import WeighbridgeError
from ..child import in_child, one_thread
from ..config import TrainConfig, validate
from .entries import BASELINE, Entry

TABLE, PLOT = "bench.json", "bench.png"
COLUMNS: Final = {
    "row": "row",
    "batch": "batch_size",
    "step ms": "step_ms",
    "samples/s": "samples_per_second",
    "ratio": "ratio",
    "samples/CPU s": "samples_per_processor_second",
    "its ratio": "processor_ratio",
    "forward/s": "inference_samples_per_second",
    "peak MB": "peak_memory_mb",
    "at equal batch": "memory_ratio",
    "final loss": "final_loss",
}
RATIOS: Final = {
    "ratio": "samples_per_second",
    "processor_ratio": "samples_per_processor_second",
}
Row = dict[str, Any]


def measured(config: TrainConfig, entries: Sequence[Entry], updates: int, small: str) -> list[Row]:
    """Return a row for every one of ENTRIES of CONFIG, with its ratios to the baseline's samples a second.

    That of memory is to the first row of the backend with as many examples an update.

    One is of the time that passes, the other of the time that this process's processors work: other
    programs change the former alone.

    Args:
        config: the recipe.
        entries: the rows.
        updates: timed ones of each.
        small: the model with weights of 4 bits; empty where there is none.
    """
    with one_thread():
        rows = [_row(config, entry, updates, small) for entry in entries]
    for ratio, speed in RATIOS.items():
        base = {row["row"]: row.get(speed) for row in rows}
        for row in rows:
            before = base.get(f"{row['backend']} {BASELINE}")
            if before and row.get(speed):
                row[ratio] = round(row[speed] / before, 3)
    _compare_memory(rows)
    return rows


def _compare_memory(rows: Sequence[Row]) -> None:
    """Set what each of ROWS takes of the memory of the first one with as many examples an update."""
    first: dict[tuple[str, int], float] = {}
    for row in rows:
        if memory := row.get("peak_memory_mb"):
            before = first.setdefault((row["backend"], row["examples"]), memory)
            row["memory_ratio"] = round(memory / before, 3)


def _row(config: TrainConfig, entry: Entry, updates: int, small: str) -> Row:
    row: Row = {"row": entry.name, "backend": entry.backend}
    if entry.why_not or (entry.quantized and not small):
        return row | {
            "not_run": entry.why_not or "no model with 4-bit weights: name one by --quantized"
        }
    changed = entry.settings | ({"model": small} if entry.quantized else {})
    announce(f"measuring {entry.name}")
    settings = {**config.model_dump(mode="json"), **changed}
    if config.epochs:
        settings.pop("steps")
    try:
        return row | in_child(_measured, settings, entry, updates)
    except (WeighbridgeError, MemoryError) as error:
        return row | {"not_run": str(error).partition("\n")[0] or "out of memory"}


def _measured(settings: Mapping[str, Any], entry: Entry, updates: int) -> Row:
    from .measure import measure

    return measure(validate(settings), entry.backend, updates, lazy=entry.lazy)


def cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield ROWS that were run as texts, in the order of ``COLUMNS``."""
    for row in rows:
        if "not_run" not in row:
            yield [_cell(row.get(key)) for key in COLUMNS.values()]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for every row: the phases of its update in percent and their sum, or why it was not run."""
    for row in rows:
        if "not_run" in row:
            yield f"{row['row']}: not run, {row['not_run']}"
        elif parts := row.get("phases"):
            whole = sum(parts.values())
            shares = (f"{name} {100 * took / whole:.0f} %" for name, took in parts.items())
            yield f"{row['row']}: {', '.join(shares)} (together {row['phases_percent']:.0f} % of an update)"


def write(rows: Sequence[Row], folder: Path, draw: Callable[[Sequence[Row], Path], None]) -> None:
    """Write ROWS to FOLDER as JSON and as a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(list(rows), indent=1) + "\n"
    (folder / TABLE).write_text(text, encoding="utf-8")
    draw(rows, folder / PLOT)
