"""Print ``docs/upstream.md`` from ``faults.py`` and ``benchmarks/results/upstream.json``."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weighbridge.converters.libraries.repairs.catalogue import REPAIRS, Repair
from weighbridge.converters.libraries.repairs.writing import PARTS, file_of
from weighbridge.converters.libraries.resaved import CHANGES
from weighbridge.tests.support.atlas import mends
from weighbridge.tests.support.atlas.faults import FAULTS, Fault

HEAD = """\
# Faults upstream

Here transformers {transformers} and mlx-lm {mlx-lm} disagree, without Weighbridge: transformers saves a tiny checkpoint
with random weights, mlx-lm loads it with its own loader and refuses it, or computes other logits from the same weights.
The page is for those who would mend a fault where it is, and for those who want to know why a conversion DIFFERS.
It is written by `python benchmarks/atlas/upstream.py`; do not edit it.

Of each fault it says:

- **who** departs from the published model: mlx-lm, transformers, or both, where nobody can tell;
- **repro**: a command for a checkout of Weighbridge, which prints the two errors again;
- **seen**: how far mlx-lm's logits are from those of transformers in float64, as a part of the largest logit, and how far
  a correct implementation in float32 may be; or what mlx-lm says when it refuses;
- **change**: the least with which both agree, and the same error with it. Where it is a change of the configuration, it
  only avoids the fault, and so shows that this is the cause;
- **here**: what Weighbridge does about it. `--repair` writes a `model.py` beside the weights that mends the class;
- **test**: its case in `tests/atlas/test_upstream.py`, which fails as soon as upstream mends the fault.

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
    from weighbridge.tests.support.atlas import tower_page

    lines = [section(fault, layout, result["rows"]) for fault, layout in cases()]
    lines += tower_page.sections()
    return HEAD.format(**result["versions"]) + "\n".join(lines)


def section(fault: Fault, layout: str, measured: Mapping[str, Any]) -> str:
    """Return the section of FAULT, in LAYOUT."""
    name = f"{fault.kind}-{layout}"
    found = measured[name]
    seen = (
        f"mlx-lm stops with `{fault.raises}`"
        if fault.raises
        else f"{figure(found['error'], found['bar'])}"
    )
    where = {"saved": "as `save_pretrained` writes it", "hub": "as published"}[layout]
    parts = {
        "who": fault.side,
        "fault": f"{fault.why}.",
        "repro": f"`python -m weighbridge.tests.support.atlas.upstream {fault.kind}`",
        "seen": seen,
        "change": changed(fault, layout, found),
        "here": ours(fault, layout),
        "test": f"`{name}`",
    }
    lines = [f"- **{key}**: {text}" for key, text in parts.items() if text]
    return "\n".join([f"## {fault.kind}, {where}", "", *lines, ""])


def changed(fault: Fault, layout: str, measured: Mapping[str, Any]) -> str:
    """Return the least change that makes both agree, in words, and what was MEASURED with it."""
    if fault.mend:
        words = inspect.getdoc(getattr(mends, fault.mend)) or ""
        change = f"{words.splitlines()[0].rstrip('.')} (`{fault.mend}` in `tests/support/atlas/mends.py`)"
    elif fault.agree:
        change = f"with `{json.dumps(fault.agree)}` in the configuration both agree"
    elif repairs := REPAIRS.get(fault.kind, ()):
        change = " ".join(documented(repair) for repair in repairs)
        return "" if fault.kind in CHANGES and layout == "saved" else change
    else:
        return ""
    return f"{change}: {figure(measured['mended'], measured['mended_bar'])}"


def documented(repair: Repair) -> str:
    """Return what the part of REPAIR says that it makes of the class."""
    tree = ast.parse(file_of(repair).read_text(encoding="utf-8"))
    [first, *_] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return ast.get_docstring(first) or ""


def ours(fault: Fault, layout: str) -> str:
    """Return what Weighbridge does about FAULT."""
    if fault.kind in CHANGES and layout == "saved":
        return "the tensors are written under the names and in the shapes that the class reads"
    if repairs := REPAIRS.get(fault.kind, ()):
        return f"`--repair`, by {linked(repairs)}"
    if "metal_kernel" in fault.raises:
        return "nothing: it runs on a Mac"
    if fault.kind == "nemotron_h":
        return "the configuration is written so that the class computes what transformers does"
    return "nothing; the conversion's verdict says so"


def linked(repairs: Sequence[Repair]) -> str:
    """Return links to the parts of REPAIRS."""
    links = [f"[{it.part}]({HERE}/{file_of(it).relative_to(PARTS)})" for it in repairs]
    some = ", those of them that the configuration needs" if len(links) > 1 else ""
    return f"{', '.join(links)}{some}"


def figure(error: float, bar: float) -> str:
    """Return an error and its bar."""
    return f"off by {error:.1e}, where {bar:.1e} is allowed"


def write_page(source: Path, target: Path) -> None:
    """Print the result in SOURCE as Markdown to TARGET."""
    target.write_text(page(json.loads(source.read_text())), encoding="utf-8")
