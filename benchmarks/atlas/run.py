"""The atlas: every model type that transformers and mlx-lm share, to MLX and back.

    python benchmarks/atlas/run.py [TYPE ...] [--workers 2] [--out benchmarks/results/atlas.json]

Rows run a few to a process, so that one that crashes costs only itself. With TYPES, only their rows
are measured again. The table in ``docs/atlas.md`` is printed from the file.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from weighbridge.tests.support.atlas.rows import (
    judged,
    measured,
    names,
    unpaired,
)
from weighbridge.tests.support.atlas.table import write_table

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "atlas.json"
PACKAGES = ("weighbridge", "mlx-lm", "mlx", "transformers", "torch")


def main() -> None:
    """Measure, write the result and print the table from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", metavar="TYPE", nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = json.loads(options.out.read_text())["rows"] if options.kinds else []
    kept = [row for row in before if row["kind"] not in options.kinds]
    rows = [*map(judged, kept), *measured(names(options.kinds), options.workers)]
    rows += [] if options.kinds else map(judged, unpaired())
    rows.sort(key=lambda row: (row["kind"], row["layout"] != "saved"))
    result = {"versions": {name: version(name) for name in PACKAGES}, "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.out == RESULT:
        write_table(RESULT, ROOT / "docs" / "atlas.md")


if __name__ == "__main__":
    main()
