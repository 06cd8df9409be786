"""Time that updates wait for their data, as a share of the time of all updates.

    python benchmarks/waiting.py [--steps 60] [--recipe NAME ...]

Every recipe of texts that needs nothing but this machine, in both backends, with the threads that make batches ahead by
default (``prefetch``) and without any. The first update, for which nothing can be ready, is left out. A share is a ratio
of times of one run; the bar is for the default. Writes ``results/waiting.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.tests.support.side_by_side import machine
from weighbridge.trainers.config import load_config
from weighbridge.trainers.runs.events import Event, Updated
from weighbridge.trainers.runs.loop import BACKENDS, train

RESULT = Path(__file__).parent / "results" / "waiting.json"
RECIPES = ("docstrings", "xtr", "gated-lm")
BAR = 0.01


def share(recipe: str, backend: str, workers: int | None, steps: int) -> dict[str, Any]:
    """Return what part of the time updates waited, with WORKERS or as many threads as by default."""
    often = [f"{key}={steps}" for key in ("steps", "validate_every", "checkpoint_every")]
    settings = [
        *often,
        "data.test=null",
        *([] if workers is None else [f"prefetch.workers={workers}"]),
    ]
    seen: list[tuple[float, float]] = []

    def note(event: Event) -> None:
        if isinstance(event, Updated):
            seen.append((time.monotonic(), event.waited))

    config = load_config(recipe, settings)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", backend=backend, progress=note)
    seconds = seen[-1][0] - seen[0][0]
    waited = sum(one for _, one in seen[1:])
    return {
        "recipe": recipe,
        "backend": backend,
        "workers": config.prefetch.workers,
        "share": round(waited / seconds, 5),
    }


def main() -> None:
    """Measure every way and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--recipe", action="append", choices=RECIPES)
    asked = parser.parse_args()
    preload_blas()
    rows = []
    for recipe in asked.recipe or RECIPES:
        for backend in BACKENDS:
            for workers in (None, 0):
                rows.append(share(recipe, backend, workers, asked.steps))
                row = rows[-1]
                print(
                    f"{recipe:12} {backend:6} {row['workers']} threads: {row['share']:.3%} waited",
                    flush=True,
                )
    worst = max(row["share"] for row in rows if row["workers"])
    print(f"largest {worst:.3%}, bar {BAR:.0%}: {'reached' if worst <= BAR else 'MISSED'}")
    result = {"bar": BAR, "steps": asked.steps, "largest": worst, "rows": rows}
    RESULT.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
