"""What a row of the atlas comes to: pass, upstream fault or gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from weighbridge.tests.support.atlas.faults import FAULTS, Fault
from weighbridge.tests.support.atlas.row import Row, agrees, mends

# Types that have no pair of classes, so that there is nothing to convert.
UNPAIRED = {
    "pixtral": "in transformers the type is a vision tower alone; its checkpoints say llava",
}
OURS = ("forward", "inverse", "trained", "config")


def verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return ``pass``, ``repaired``, ``upstream``, ``gap`` or ``unpaired``, and the reason.

    A row is an upstream fault only where mlx-lm, given the same checkpoint without us, holds the
    same weights bit for bit or refuses it in the same way, and where `faults.py` says why; the
    repro of that fault is a test.
    """
    row = {**asdict(Row("", "")), **row}  # what an older result did not measure
    if row["kind"] in UNPAIRED:
        return "unpaired", UNPAIRED[row["kind"]]
    ours = list(broken(row))
    agreed, fault = agrees(row), known(row)
    if not ours and row["accepted"] == "exact" and agreed:
        return "pass", ""
    if fault and not ours and is_theirs(row):
        return "repaired" if mends(row) else "upstream", fault.why
    if fault and fault.raises and (fault.raises in row["failed"] or fault.raises in row["control"]):
        return "repaired" if mends(row) else "upstream", fault.why
    return "gap", "; ".join([*ours, *theirs(row)])


def known(row: Mapping[str, Any]) -> Fault | None:
    """Return the fault that speaks of ROW's type and layout."""
    return next((f for f in FAULTS if f.kind == row["kind"] and row["layout"] in f.layouts), None)


def broken(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of our own part is not exact."""
    if row["failed"]:
        yield row["failed"]
    for step in OURS:
        if row[step] and not row[step].startswith("exact"):
            yield f"{step}: {row[step]}"
    if row["check"] == ("DIFFERS" if agrees(row) else "PASS"):
        yield f"the check says {row['check']}, and an independent forward says otherwise"
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
    for text in ("", "long_"):
        error = row[f"{text}error"]
        if error is not None and error > row[f"{text}bar"]:
            yield f"{text}logits differ by {error:.1e}, mlx-lm alone has the {row['control']}"
