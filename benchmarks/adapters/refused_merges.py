"""Merges that nobody wants: an adapter into a model that has it already, or into another base.

    python benchmarks/adapters/refused_merges.py

*Twice*, 12 ways: both dialects of adapters, bases in both frameworks, LoRA, DoRA, and bases of 8 bits
(merged into as they are, or with ``--original`` through the weights in torch). Of each way the second
merge is tried in all forms in which the same adapter can come back: itself, a copy elsewhere in another
order, the other dialect, into the merged model in the other framework, and, with the manifest gone,
where the adapter names the model that it was trained on. *Elsewhere*, 12 ways: the record in both
frameworks, the base in both, LoRA and DoRA, and a base in bfloat16; the base is a sibling of which one
weight was trained further. All must be refused, exit 3, and leave nothing.

Controls, which must pass: another adapter into each merged model, and the right base in each way. All
through the command line, with ``--check none``. Writes ``results/adapters_refused_merges.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from weighbridge.tests.support.adapters.refused_merges import (
    ELSEWHERE,
    TWICE,
    WHY,
    Bench,
    Tried,
    Twice,
    elsewhere,
    refused,
    run,
    twice,
)
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_refused_merges.json"


def another(bench: Bench, way: Twice) -> Tried:
    """Merge by WAY, then another adapter: a control."""
    merged, extra = bench.folder / f"merged {way.told}", list[Any]()
    out = bench.folder / f"another {way.told}"
    adapter = bench.adapter(way.dialect, dora=way.kind == "DoRA", seed=3)
    return run("another adapter", out, "merge", merged, adapter, out, *extra)


def right(tried: Tried) -> bool:
    """Say whether a control was taken."""
    return tried.code == 0 and tried.left


def measure(folder: Path) -> dict[str, Any]:
    """Try every way in FOLDER; return the counts."""
    bench, rows, counts = Bench(folder), list[dict[str, Any]](), Counter[str]()
    for way in TWICE:
        second, control = list(twice(bench, way)), another(bench, way)
        rows.append(row("twice", way.told, second, control))
    for place in ELSEWHERE:
        found, control = [elsewhere(bench, place)], elsewhere(bench, place, sibling=False)
        rows.append(row("elsewhere", place.told, found, control))
    for it in rows:
        counts[f"{it['kind']}: ways"] += 1
        counts[f"{it['kind']}: ways refused"] += it["refused"] == it["tried"]
        counts[f"{it['kind']}: merges tried"] += it["tried"]
        counts[f"{it['kind']}: merges refused"] += it["refused"]
        counts[f"{it['kind']}: controls that pass"] += it["control"]
        print(
            f"{it['kind']:9}  {it['way']:16}  {it['refused']} of {it['tried']} refused", flush=True
        )
    return {"counts": dict(counts), "ways": rows}


def row(kind: str, way: str, found: list[Tried], control: Tried) -> dict[str, Any]:
    """Return what came of a way."""
    return {
        "kind": kind,
        "way": way,
        "tried": len(found),
        "refused": sum(refused(it, WHY[kind]) for it in found),
        "passed": [it.what for it in found if not refused(it, WHY[kind])],
        "control": right(control),
    }


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        document = measure(Path(name))
    document["ok"] = all(it["refused"] == it["tried"] and it["control"] for it in document["ways"])
    document |= {"seconds": round(time.perf_counter() - start), "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["counts"], indent=1))
    print("all as they should be" if document["ok"] else "NOT all as they should be")


if __name__ == "__main__":
    main()
