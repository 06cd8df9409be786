"""The same recipe trained in both backends: how far their losses are apart, and how fast each is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...converters.checkpoints import require_target
from ...converters.common.system import writing
from .recipes import CONFIG, train

BACKENDS: Final = ("mlx", "torch")
REPORT, PLOT, METRICS = "compare.json", "compare.png", "metrics.jsonl"
USUAL: Final = 1e-5  # of the loss, on a CPU in float32
DRAWN: Final = "dropout draws other numbers in each backend: --set mode=eval compares without"


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Attributes:
        out: the folder, with a run of each backend in it.
        losses: of every update, by backend.
        samples_per_second: the median, by backend.
        peak_memory_mb: the most beyond what there was before the model, by backend.
        mode: that of the module under training.
    """

    out: Path
    losses: dict[str, list[float]]
    samples_per_second: dict[str, float]
    peak_memory_mb: dict[str, float]
    mode: str

    @property
    def largest_difference(self) -> float:
        """The largest difference of two losses of one update; infinite where one is not finite."""
        pairs = zip(*self.losses.values(), strict=True)
        return float(max(abs(one - other) for one, other in pairs))

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "out": str(self.out),
            "largest_difference": self.largest_difference,
            "samples_per_second": self.samples_per_second,
            "peak_memory_mb": self.peak_memory_mb,
            "losses": self.losses,
        }

    def summary(self) -> str:
        """Return the comparison in a few lines."""
        updates = len(self.losses["mlx"])
        last = ", ".join(f"{name} {losses[-1]:.6f}" for name, losses in self.losses.items())
        speeds = ", ".join(f"{name} {it:.1f}" for name, it in self.samples_per_second.items())
        ratio = self.samples_per_second["mlx"] / self.samples_per_second["torch"]
        apart = f"losses of {updates} updates differ by {self.largest_difference:.1e} at most"
        usual = f"up to {USUAL:.0e} is usual on a CPU in float32"
        if self.mode == "train" and self.largest_difference > USUAL:
            usual += f"; {DRAWN}"
        speed = f"samples/s: {speeds} (mlx {ratio:.2f} x torch)"
        memory = ", ".join(f"{name} {it:.0f}" for name, it in self.peak_memory_mb.items())
        speed += f"; peak MB: {memory}"
        return "\n".join([f"{apart} ({usual}); the last: {last}", speed, str(self.out / PLOT)])


def compare(
    target: Path | None, recipe: Path | str | None, overrides: Sequence[str], updates: int
) -> Comparison:
    """Train RECIPE for UPDATES updates in both backends, and leave the runs and a picture in TARGET."""
    from ...trainers.config import load_config
    from ...trainers.launchers import require_alone
    from ...trainers.plots import plot_comparison
    from .recipes import default_run

    require_alone("train --compare")
    target = target or default_run(resume=False)
    require_target(target, "comparison")
    with writing(target):
        target.mkdir(parents=True)
    short = [*overrides, f"steps={updates}", f"validate_every={updates}"]
    records = {name: _records(target / name, name, recipe, short) for name in BACKENDS}
    losses = {
        name: [float("inf") if row["loss"] is None else row["loss"] for row in rows]
        for name, rows in records.items()
    }
    speeds = {
        name: statistics.median(row["samples_per_second"] for row in rows)
        for name, rows in records.items()
    }
    peaks = {name: max(row["peak_memory_mb"] for row in rows) for name, rows in records.items()}
    mode = load_config(target / BACKENDS[0] / CONFIG).mode
    found = Comparison(target, losses, speeds, peaks, mode)
    with writing(target):
        (target / REPORT).write_text(
            json.dumps(found.document(), indent=1) + "\n", encoding="utf-8"
        )
        plot_comparison(losses, target / PLOT)
    return found


def _records(
    out: Path, backend: str, recipe: Path | str | None, overrides: Sequence[str]
) -> list[dict[str, Any]]:
    """Train in a process of its own: memory and speed are those of one backend alone."""
    from ...trainers.child import in_child
    from ...trainers.runs.journal import read_records

    in_child(train, out, backend, recipe, overrides)
    return [row for row in read_records(out / METRICS) if "loss" in row]
