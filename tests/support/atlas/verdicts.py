"""What a row of the atlas comes to: pass, upstream fault or gap."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from weighbridge.converters.libraries.repairs.catalogue import OF_LIBRARY
from weighbridge.converters.libraries.repairs.writing import file_of
from weighbridge.converters.libraries.resaved import change_for
from weighbridge.tests.support.atlas.faults import Fault
from weighbridge.tests.support.atlas.row import Row, agrees, mends, runs_mended
from weighbridge.tests.support.atlas.tower_faults import ALL

# Types that have no pair of classes, so that there is nothing to convert.
UNPAIRED: dict[str, dict[str, str]] = {
    "mlx-lm": {
        "pixtral": "in transformers the type is a vision tower alone; its checkpoints say llava",
    },
    "mlx-embeddings": {},
    "mlx-vlm": {},
}
OURS = ("forward", "inverse", "trained", "config")


def verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return ``pass``, ``repaired``, ``upstream``, ``gap`` or ``unpaired``, and the reason.

    A row is an upstream fault only where mlx-lm, given the same checkpoint without us, holds the
    same weights bit for bit or refuses it in the same way, and where `faults.py` says why; the
    repro of that fault is a test.
    """
    row = {**asdict(Row("", "")), **row}  # what an older result did not measure
    if row["kind"] in UNPAIRED[row["library"]]:
        return "unpaired", UNPAIRED[row["library"]][row["kind"]]
    ours = list(broken(row))
    agreed, fault = agrees(row), known(row)
    if not ours and row["accepted"] == "exact" and agreed:
        return "pass", ""
    if row["library"] != "mlx-lm" and not ours and mends(row):
        return "repaired", said_of(row["library"], row["kind"])
    if fault and not ours and is_theirs(row):
        return "repaired" if mends(row) else "upstream", fault.why
    met = ("failed", "control")
    if change_for(row["library"], row["kind"]) and row["library"] != "mlx-lm":
        met = ("accepted",)  # what the library refuses there we have put right
    if fault and fault.raises and any(fault.raises in row[it] for it in met):
        return "repaired" if mends(row) else "upstream", fault.why
    return "gap", "; ".join([*ours, *theirs(row)])


def said_of(library: str, kind: str) -> str:
    """Return what the repairs of LIBRARY's class for KIND say is wrong with it."""
    texts = [
        ast.get_docstring(ast.parse(file_of(it).read_text())) for it in OF_LIBRARY[library][kind]
    ]
    return " ".join(dict.fromkeys(filter(None, texts)))


def known(row: Mapping[str, Any]) -> Fault | None:
    """Return the fault that speaks of ROW's type and layout."""
    about = (row["library"], row["kind"])
    found = [f for f in ALL if (f.library, f.kind) == about and row["layout"] in f.layouts]
    return next(iter(found), None)


def broken(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of our own part is not exact."""
    if row["failed"]:
        yield row["failed"]
    for step in OURS:
        if row[step] and not row[step].startswith("exact"):
            yield f"{step}: {row[step]}"
    if row["check"] == ("DIFFERS" if agrees(row) else "PASS"):
        yield f"the check says {row['check']}, and an independent forward says otherwise"
    if runs_mended(row) and not mends(row):
        yield "the check of the repaired directory says DIFFERS, and an independent forward does not"
    if row["greedy"] is not None and row["greedy"] > row["long_bar"]:
        yield f"a generated token is behind transformers' own by {row['greedy']:.1e}"


def is_theirs(row: Mapping[str, Any]) -> bool:
    """Say whether mlx-lm without us does just what it does with our directory."""
    return row["control"] == "same weights" or (
        row["accepted"] != "exact" and row["control"] == row["accepted"]
    )


def theirs(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of the other part differs."""
    if row["accepted"] not in ("", "exact"):
        yield row["accepted"]
    for text in ("", "long_", "seen_"):
        error = row[f"{text}error"]
        if error is not None and error > row[f"{text}bar"]:
            alone = f"{row['library']} alone has the {row['control'][:60]}"
            yield f"{text}logits differ by {error:.1e}, {alone}"
