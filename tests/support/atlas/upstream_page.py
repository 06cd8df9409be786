"""Print ``docs/upstream.md`` from ``faults.py`` and ``benchmarks/results/upstream.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weighbridge.converters.libraries.repairs.catalogue import REPAIRS
from weighbridge.converters.libraries.repairs.writing import PARTS, file_of
from weighbridge.converters.libraries.resaved import CHANGES
from weighbridge.tests.support.atlas.faults import FAULTS, Fault

HEAD = """\
# Faults upstream

What transformers {transformers} and mlx-lm {mlx-lm} disagree on without us: transformers saves a tiny
checkpoint, mlx-lm's own loader reads it. Written by `python benchmarks/atlas/upstream.py`; do not edit.

Each line is repeated by `tests/atlas/test_upstream.py` under the name in its last column, which fails when upstream
mends the fault. The smallest repro of a line is

```sh
python -m weighbridge.tests.support.atlas.upstream TYPE
```

*Error* is of the logits, relative to the largest, against transformers in float64; its bar is what a correct
implementation in float32 may err. *With the change* is the same after the smallest change that makes both agree.

| type | who departs from the published model | fault | smallest change | error (bar) | with the change | here | test |
|---|---|---|---|---|---|---|---|
"""
HERE = "../converters/libraries/repairs/parts"


def cases() -> Iterator[tuple[Fault, str]]:
    """Yield every fault with each layout of the checkpoint that shows it."""
    from weighbridge.tests.support.atlas import hub

    for fault in FAULTS:
        for layout in fault.layouts:
            if layout == "saved" or fault.kind in hub.LAYOUTS:
                yield fault, layout


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a RESULT: versions, and what was measured by type and layout."""
    lines = [row(fault, layout, result["rows"]) for fault, layout in cases()]
    return HEAD.format(**result["versions"]) + "\n".join(lines) + "\n"


def row(fault: Fault, layout: str, measured: Mapping[str, Any]) -> str:
    """Return the line of FAULT."""
    name = f"{fault.kind}-{layout}"
    found = measured[name]
    said = f"`{plain(fault.raises)}`" if fault.raises else figure(found["error"], found["bar"])
    after = "-" if fault.raises else figure(found["mended"], found["mended_bar"])
    change = changed(fault) or "-"
    cells = (fault.kind, fault.side, plain(fault.why), change, said, after, ours(fault, layout))
    return f"| {' | '.join((*cells, f'`{name}`'))} |"


def changed(fault: Fault) -> str:
    """Return the smallest change that makes both agree, in words."""
    if fault.mend:
        return f"`{fault.mend}` in `tests/support/atlas/mends.py`"
    return f"`{plain(json.dumps(fault.agree))}`" if fault.agree else ""


def ours(fault: Fault, layout: str) -> str:
    """Return what Weighbridge does about FAULT."""
    if "metal_kernel" in fault.raises:
        return "nothing: it runs on a Mac"
    if repairs := REPAIRS.get(fault.kind, ()):
        links = [f"[{it.part}]({HERE}/{file_of(it).relative_to(PARTS)})" for it in repairs]
        return f"`--repair`: {', '.join(links)}"
    if fault.kind in CHANGES and layout == "saved":
        return "written as the class reads it"
    return "the configuration says it" if fault.kind == "nemotron_h" else "nothing"


def figure(error: float, bar: float) -> str:
    """Return an error and its bar."""
    return f"{error:.1e} ({bar:.1e})"


def plain(text: str) -> str:
    """Return TEXT as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def write_page(source: Path, target: Path) -> None:
    """Print the result in SOURCE as Markdown to TARGET."""
    target.write_text(page(json.loads(source.read_text())), encoding="utf-8")
