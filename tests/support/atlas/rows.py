"""Rows of the atlas, measured a few to a process and judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from weighbridge.tests.support.atlas import tiny
from weighbridge.tests.support.atlas.row import Row
from weighbridge.tests.support.atlas.verdicts import UNPAIRED, verdict

BATCH = 5  # rows to a process: one that dies takes at most these along, and they run again alone
SECONDS = 120  # a row
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "MLX_DISABLE_COMPILE": "1",  # compiling costs seconds a kernel on a CPU
}


def names(kinds: list[str], library: str = "mlx-lm") -> list[str]:
    """Return the rows of KINDS, of all types of LIBRARY where there are none, as ``TYPE:LAYOUT``."""
    wanted = [kind for kind in kinds or tiny.types(library) if kind not in UNPAIRED[library]]
    if library != "mlx-lm":
        return [f"{kind}:saved" for kind in wanted]
    return [f"{kind}:{layout}" for kind in wanted for layout in tiny.layouts(kind)]


def batch(rows: list[str], library: str = "mlx-lm") -> list[dict[str, Any]]:
    """Measure ROWS in a process; those that it did not come to are measured one by one."""
    command = [sys.executable, "-m", "weighbridge.tests.support.atlas.row", library, *rows]
    with subprocess.Popen(
        command, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, problem = process.communicate(timeout=SECONDS * len(rows))
        except subprocess.TimeoutExpired:
            process.kill()
            out, problem = process.communicate()
    done = [json.loads(line) for line in out.splitlines()]
    left = rows[len(done) :]
    if len(left) > 1:
        return done + [row for name in left for row in batch([name], library)]
    return done + [lost(name, library, process.returncode, problem) for name in left]


def lost(name: str, library: str, code: int, problem: bytes) -> dict[str, Any]:
    """Return the row of a process that ended before it was measured."""
    last = problem.decode(errors="replace").strip().splitlines()[-1:]
    kind, layout = name.split(":")
    why = f"the process ended with {code}: {''.join(last)[:200]}"
    return asdict(Row(kind, layout, library, failed=why))


def measured(rows: list[str], workers: int, library: str = "mlx-lm") -> Iterator[dict[str, Any]]:
    """Yield every row, judged, as its batch ends."""
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(partial(batch, library=library), batches):
            for row in map(judged, found):
                print(f"{row['kind']}:{row['layout']} {row['status']} {row['why']}", flush=True)
                yield row


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return ROW with what it comes to."""
    status, why = verdict(row)
    return row | {"status": status, "why": why}


def unpaired(library: str = "mlx-lm") -> Iterator[dict[str, Any]]:
    """Yield the rows of types of LIBRARY that have no pair of classes."""
    for kind, why in UNPAIRED[library].items():
        yield asdict(Row(kind, "saved", library, failed=why))
