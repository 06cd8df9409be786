"""Merge an adapter into a base of 3 GB: the peak of resident memory against the largest tensor.

    python benchmarks/adapters/merge_memory.py [--gigabytes 3] [--rank 16] [--check none] [--folder DIR]

A Llama in bfloat16 whose every projection is changed, the head too: the head is as large as the
largest tensor. The peak is the largest sum of the resident memory of all processes of a merge,
looked at every 10 ms, and beside it the largest peak of a single process, as the system counts it.
The bar is three times the largest tensor and 150 MB. Each merge is run twice: the first time nothing is
kept of what the libraries said of the model, and asking them is part of the merge. Values are random and adapters float32. The
model is made in DIR and removed. Writes ``results/adapters_merge_memory.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, Final

from weighbridge.tests.support.adapters import made
from weighbridge.tests.support.adapters.merge_memory import (
    measure,
)
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_merge_memory.json"


def show(row: dict[str, Any]) -> str:
    """Return ROW as a line."""
    return (
        f"{row['gigabytes']} GB, {row['adapter']:4} of rank {row['rank']:2}"
        f" ({row['adapter_megabytes']} MB), check {row['check']}, {row['turn']} time: peak"
        f" {row['peak_megabytes']} MB, bar {row['bar_megabytes']} MB (largest tensor {row['largest_megabytes']} MB),"
        f" {row['seconds']} s{'' if row['ok'] else '  TOO MUCH'}"
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--rank", type=int, nargs="+", default=[16])
    parser.add_argument("--check", nargs="+", default=["none"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        made.write_large(folder / "base", arguments.gigabytes * 1e9)
        for dialect, rank, check in product(made.FILE, arguments.rank, arguments.check):
            for row in measure(folder, dialect, rank, check):
                rows.append(row)
                print(show(row), flush=True)
    document = {"cases": rows, "ok": all(row["ok"] for row in rows), "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
