"""Malformed inputs of every kind, each in a child forked from a warm parent and watched.

    python benchmarks/fuzz.py [--count 10000] [--seed 0] [--family gguf ...] [--shell 200] [--keep DIR]

Good files are spoiled by mutation and by what hypothesis draws; each input runs a verb. Counted are
tracebacks, hangs over 20 s, peak memory over 1 GB, successes whose values an independent reader
does not confirm, writes outside the target, and changed sources. A random part goes through the
shell as well. Writes ``results/fuzz.json``; returns 1 when anything was found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from tests.fuzz import warm  # noqa: E402
from tests.fuzz.judge import KINDS  # noqa: E402
from weighbridge.tests.support.side_by_side import machine  # noqa: E402

RESULT = Path(__file__).parent / "results" / "fuzz.json"


def summary(rows: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return what was found, in all and by family."""
    from tests.fuzz.campaign import counts

    forks = [row for row in rows if row.get("way") == "fork"]
    families = sorted({row["family"] for row in rows})
    return {
        "inputs": len(forks),
        "through the shell as well": sum(row.get("way") == "shell" for row in rows),
        "families": len(families),
        "found": {kind: counts(rows)[kind] for kind in KINDS},
        "broken": sum("broken" in row for row in rows),
        "exit codes": dict(sorted(Counter(str(row["code"]) for row in forks).items())),
        "slowest seconds": max(row["seconds"] for row in forks),
        "largest peak MiB": max(row["peak"] for row in forks) >> 20,
        "seconds": round(seconds, 1),
        "by family": {
            name: family_facts([row for row in rows if row["family"] == name]) for name in families
        },
    }


def family_facts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one family."""
    from tests.fuzz.campaign import counts

    forks = [row for row in rows if row.get("way") == "fork"]
    return {
        "inputs": len(forks),
        "succeeded": sum(row["code"] in (0, 4) for row in forks),
        "refused": sum(row["code"] in (2, 3) for row in forks),
        "slowest seconds": max((row["seconds"] for row in forks), default=0),
        "found": dict(counts(rows)),
    }


def show(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Print the table, and what was found."""
    for name, facts in result["by family"].items():
        found = ", ".join(f"{kind} {count}" for kind, count in facts["found"].items())
        print(
            f"{name:24} {facts['inputs']:6,} inputs {facts['succeeded']:6,} succeeded"
            f" {facts['refused']:6,} refused {facts['slowest seconds']:6.1f} s  {found}"
        )
    print(
        f"{result['inputs']:,} inputs over {result['families']} families in {result['seconds']} s"
    )
    for kind, count in result["found"].items():
        print(f"{count:6,} {KINDS[kind]}")
    for row in rows:
        for kind, detail in row.get("found", ())[:2]:
            print(f"{kind:10} {row['family']} {row['name']} ({row['note']}) {row['way']}: {detail}")
        if "broken" in row:
            print("the fuzzer itself:", row["family"], row["name"], row["broken"][-300:])


def main() -> int:
    """Run, print, keep; return 1 when anything was found."""
    from tests.fuzz.families import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", choices=tuple(FAMILIES))
    parser.add_argument("--shell", type=int, default=200, help="inputs that a shell runs as well")
    parser.add_argument("--jobs", type=int, default=psutil.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="folder for cases of what is found")
    parser.add_argument("--out", type=Path, help="by default results/fuzz.json, for all families")
    arguments = parser.parse_args()
    warm.prepare()
    from tests.fuzz.campaign import campaign

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        rows = campaign(
            arguments.family or tuple(FAMILIES),
            arguments.count,
            arguments.seed,
            Path(name),
            jobs=arguments.jobs,
            shell=arguments.shell if not arguments.family else 0,
            keep=arguments.keep and arguments.keep.absolute(),
        )
    result = summary(rows, time.monotonic() - begin) | {
        "seed": arguments.seed,
        "machine": machine(),
    }
    show(result, rows)
    out = arguments.out or (None if arguments.family else RESULT)
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(sum(result["found"].values()) or result["broken"]))


if __name__ == "__main__":
    sys.exit(main())
