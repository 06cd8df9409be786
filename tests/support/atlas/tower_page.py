"""Sections of ``docs/upstream.md`` on mlx-vlm and mlx-embeddings, printed from the rows of their atlases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weighbridge.converters.libraries.repairs.catalogue import EMBEDDING, OF_LIBRARY, SEEING, needs
from weighbridge.converters.libraries.resaved import SEEING as LAID_OUT
from weighbridge.tests.support.atlas.tower_faults import OTHERS
from weighbridge.tests.support.atlas.upstream_page import documented, figure, linked
from weighbridge.tests.support.atlas.verdicts import said_of

Row = Mapping[str, Any]
HEAD = """\
# mlx-vlm and mlx-embeddings

Of these libraries the same is said, *seen* and *change* as their atlases measured them, on texts and with a picture: the
largest error for its bar. A class that is repaired had the weights in the layout that it reads.
"""
# What is done of a fault that no repair mends: whether the layout is what is wrong.
LEFT = {
    True: "the tensors are written as the class reads them",
    False: "nothing; the conversion's verdict says so",
}
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def sections() -> Iterator[str]:
    """Yield the head and a section for every fault of the two libraries."""
    yield HEAD
    rows = {(row["library"], row["kind"]): row for row in read()}
    for kind in EMBEDDING:
        yield mended(rows["mlx-embeddings", kind])
    for kind in sorted(it for it in SEEING if not needs("mlx-vlm", it)):
        yield mended(rows["mlx-vlm", kind])
    for fault in sorted(OTHERS, key=lambda it: it.kind):
        if fault.kind not in SEEING:
            yield left(fault)


def read() -> Iterator[Row]:
    """Yield the rows of both atlases."""
    for name in ("atlas_mlx_embeddings", "atlas_mlx_vlm"):
        yield from json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def worst(row: Row, way: str = "") -> str:
    """Return the error of ROW that is the largest for its bar, of the WAY that it was loaded."""
    names = [it for it in ("", "long_", "seen_") if row[f"{way}{it}error"] is not None]
    if not names or (not way and row["accepted"] != "exact"):
        return f"refused: `{row['accepted'][:120]}`"
    name = max(names, key=lambda it: row[f"{way}{it}error"] / row[f"{it}bar"])
    return figure(row[f"{way}{name}error"], row[f"{name}bar"])


def mended(row: Row) -> str:
    """Return the section of the type of ROW, whose class is repaired."""
    kind, library = row["kind"], row["library"]
    repairs, seeing = OF_LIBRARY[library][kind], library == "mlx-vlm"
    change = " ".join(documented(it) for it in repairs)
    saved = [it for it in OTHERS if (it.library, it.kind) == (library, kind)]
    file = f"tests/jobs/test_{'tower' if seeing else 'embedding'}_repairs.py"
    return section(
        kind,
        library,
        {
            "who": library,
            "fault": said_of(library, kind),
            "repro": repro(kind, library),
            "seen": worst(row),
            "as saved": "; ".join(f"it stops with `{it.raises}`, for {it.why}" for it in saved),
            "change": f"{change.removesuffix('.')}: {worst(row, 'mended_')}",
            "here": f"`--repair`, by {linked(repairs)}",
            "test": f"`{kind}` in `{file}`",
        },
    )


def left(fault: Any) -> str:
    """Return the section of FAULT, that no repair mends."""
    return section(
        fault.kind,
        fault.library,
        {
            "who": fault.side,
            "fault": f"{fault.why}.",
            "repro": repro(fault.kind, fault.library),
            "seen": f"stops with `{fault.raises}`",
            "here": fault.here if fault.here != "nothing" else LEFT[fault.kind in LAID_OUT],
            "test": f"`{fault.library}-{fault.kind}` in `tests/atlas/test_towers.py`",
        },
    )


def repro(kind: str, library: str) -> str:
    """Return the command that shows what is wrong with LIBRARY's class for KIND."""
    named = kind if library == "mlx-vlm" else f"{kind} {library}"
    return f"`python -m weighbridge.tests.support.atlas.tower_upstream {named}`"


def section(kind: str, library: str, parts: Mapping[str, str]) -> str:
    """Return a section on KIND in LIBRARY, a line for each of PARTS that says something."""
    lines = [f"- **{key}**: {text}" for key, text in parts.items() if text]
    return "\n".join([f"## {kind} in {library}", "", *lines, ""])
