"""Measure where mlx-vlm and mlx-embeddings disagree with transformers without us."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weighbridge.tests.support.atlas import libraries, logits, tiny
from weighbridge.tests.support.atlas.faults import Fault
from weighbridge.tests.support.atlas.upstream import add, kept


def words(fault: Fault) -> str:
    """Return what the library says of the checkpoint that shows FAULT, empty where it loads and runs it."""
    try:
        compare(fault, {})
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def compare(fault: Fault, change: Mapping[str, Any]) -> tuple[float, float]:
    """Return the error that is the largest for its bar, and that bar, after CHANGE of the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        how = {"gain": tiny.GAIN, "library": fault.library}
        made = tiny.make(fault.kind, Path(folder), "saved", change, **how)
        add(Path(folder), tiny.merged(fault.mlx, kept(change, fault.mlx)))
        model = libraries.load(fault.library, Path(folder))
    found = []
    for _, given in libraries.probes(fault.library, fault.kind, made.model):
        wanted = libraries.reference(fault.library, made.model, given)
        error = logits.error(libraries.native(model, given), wanted.double)
        found.append((error, wanted.bar))
    return max(found, key=lambda pair: pair[0] / pair[1])
