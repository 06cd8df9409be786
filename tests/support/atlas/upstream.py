"""Measure where mlx-lm and transformers disagree without us.

    python -m weighbridge.tests.support.atlas.upstream [TYPE ...]

transformers saves the checkpoint, mlx-lm's own loader reads it; nothing of Weighbridge takes part
but the tables of this folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.tests.support.atlas import logits, mends, tiny
from weighbridge.tests.support.atlas.faults import FAULTS, Fault


class Measured(NamedTuple):
    """What one fault gave: relative errors and their bars, or the loader's message."""

    said: str  # of mlx-lm's loader, empty where it loaded
    error: float | None  # as it is
    bar: float | None
    mended: float | None  # with the change that the fault names
    mended_bar: float | None

    @property
    def stands(self) -> bool:
        """Whether the fault is still there."""
        return bool(self.said) or (self.error is not None and self.error > (self.bar or 0))

    @property
    def explained(self) -> bool:
        """Whether the change makes both agree; true where the loader refuses."""
        return self.mended is None or self.mended <= (self.mended_bar or 0)


def measure(fault: Fault, layout: str = "saved") -> Measured:
    """Show FAULT: as it is, then with the change that it names."""
    if fault.raises:
        return refused(fault, layout)
    error, bar = compare(fault, layout, fault.own, "")
    change = tiny.merged(fault.own, fault.agree)
    mended, mended_bar = compare(fault, layout, change, fault.mend)
    return Measured("", error, bar, mended, mended_bar)


def refused(fault: Fault, layout: str) -> Measured:
    """Return what mlx-lm says about a checkpoint that it does not load or cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.make(fault.kind, Path(folder), layout)
        add(Path(folder), fault.mlx)
        said = loaders_words(Path(folder))
    return Measured(said if fault.raises in said else "", None, None, None, None)


def loaders_words(folder: Path) -> str:
    """Return what mlx-lm says when it does not load or run FOLDER; empty where it does."""
    try:
        logits.native(logits.mlx_lm(folder))
    except (Exception, SystemExit) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def compare(fault: Fault, layout: str, change: Mapping[str, Any], mend: str) -> tuple[float, float]:
    """Return the relative error of mlx-lm's logits and its bar, after CHANGE and MEND."""
    with tempfile.TemporaryDirectory() as folder:
        made = tiny.make(fault.kind, Path(folder), layout, change, gain=tiny.GAIN)
        add(Path(folder), tiny.merged(fault.mlx, kept(change, fault.mlx)))
        model = logits.mlx_lm(Path(folder))
    if mend:
        getattr(mends, mend)(made.model if mend in mends.OF_TORCH else model)
    shape = logits.LONG if fault.long else logits.SHORT
    wanted = logits.reference(made.model, shape)
    return logits.error(logits.native(model, shape), wanted.double), wanted.bar


def kept(change: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of CHANGE is among the KEYS that mlx-lm is given anyhow."""
    return {key: change[key] for key in keys if key in change and not key.endswith("_config")}


def add(folder: Path, keys: Mapping[str, Any]) -> None:
    """Write KEYS into the config.json of FOLDER."""
    path = folder / "config.json"
    path.write_text(json.dumps(tiny.merged(json.loads(path.read_text()), keys)))


if __name__ == "__main__":
    for row in FAULTS:
        if row.kind in sys.argv[1:] or len(sys.argv) == 1:
            for where in set(row.layouts) & set(tiny.layouts(row.kind)):
                print(row.kind, where, measure(row, where), flush=True)
