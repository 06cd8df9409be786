"""Merge 24 projections, written in random orders and in several shardings: the same bytes each time.

    python benchmarks/adapters/merge_orders.py [--orders 100]

A Llama of 6 layers, its q, k, v and o changed. The tensors of the adapter lie in another random order
each time, those of the base every tenth time, in 1, 3 or as many shards as it has tensors. Both
dialects of adapters on both frameworks' bases, LoRA and DoRA. A merge counts if

1. all 24 projections are what NumPy makes of them in float64, to one rounding of float32, and
2. all other tensors have the bytes of the base, and
3. every tensor has the bytes that the first merge of its kind gave it, and
4. the whole file has the bytes of the others made of the same base (which gives the order). Writes
``results/adapters_merge_orders.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

from weighbridge.tests.support.adapters.merge_orders import (
    measure,
    passes,
)
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_merge_orders.json"
CASES: Final = tuple(product(("peft", "mlx"), ("torch", "mlx"), (False, True)))


def show(row: dict[str, Any]) -> str:
    """Return ROW as a line."""
    return (
        f"{row['adapter']:4} {row['kind']} on a {row['base']:5} base: {row['right']} of"
        f" {row['merges']} merges with all {row['projections']} projections right;"
        f" tensors {row['different_tensors']} x; {row['bases_in_files']} ways to write the base,"
        f" {row['different_files']} different files"
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    start, rows = time.perf_counter(), []
    for dialect, framework, dora in CASES:
        rows.append(measure(dialect, framework, dora=dora, orders=arguments.orders))
        print(show(rows[-1]), flush=True)
    document = {
        "cases": rows,
        "ok": all(map(passes, rows)),
        "seconds": round(time.perf_counter() - start),
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print("all as they should be" if document["ok"] else "NOT all as they should be")


if __name__ == "__main__":
    main()
