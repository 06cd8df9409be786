"""The atlas: every model type that transformers and an MLX library share, to MLX and back.

    python benchmarks/atlas/run.py [TYPE ...] [--library mlx-lm] [--workers 2] [--out FILE]

Rows run a few to a process, so that one that crashes costs only itself. With TYPES, only their rows
are measured again. The table in ``docs/atlas.md``, of another library ``docs/atlas-LIBRARY.md``, is
printed from the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weighbridge.tests.support.atlas.rows import (
    judged,
    measured,
    names,
    unpaired,
)
from weighbridge.tests.support.atlas.table import file_name, write_table
from weighbridge.tests.support.atlas.tiny import types
from weighbridge.tests.support.atlas.verdicts import UNPAIRED

ROOT = Path(__file__).parents[2]
PACKAGES = ("weighbridge", "mlx", "transformers", "torch")


def main() -> None:
    """Measure, write the result and print the table from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", metavar="TYPE", nargs="*")
    parser.add_argument("--library", choices=tuple(UNPAIRED), default="mlx-lm")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = file_name(options.library)
    result = ROOT / "benchmarks" / "results" / f"{name.replace('-', '_')}.json"
    out = options.out or result
    rows = list(updated(out, options.kinds, options.library, options.workers))
    rows.sort(key=lambda row: (row["kind"], row["layout"] != "saved"))
    versions = {name: version(name) for name in (options.library, *PACKAGES)}
    shared = {} if options.library == "mlx-lm" else {"types": types(options.library)}
    result_text = json.dumps({"versions": versions, **shared, "rows": rows}, indent=1)
    out.write_text(result_text + "\n")
    if out == result:
        write_table(result, ROOT / "docs" / f"{name}.md")


def updated(file: Path, kinds: list[str], library: str, workers: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of FILE, those of KINDS, or all, measured again."""
    before = json.loads(file.read_text())["rows"] if kinds and file.exists() else []
    yield from (judged(row) for row in before if row["kind"] not in kinds)
    yield from measured(names(kinds, library), workers, library)
    yield from () if kinds else map(judged, unpaired(library))


if __name__ == "__main__":
    main()
