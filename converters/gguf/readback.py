"""A written file read again, by our reader and llama.cpp's own, and compared number by number."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..checkpoints import Checkpoint
from ..common.dtypes import dtype_of
from ..values import Array
from .file import GgufFile
from .library import gguf
from .plan import Made, Plan
from .proof import square
from .types import FLOATS, allowed
from .write import made_rows


class Readback(NamedTuple):
    """What reading the file again has shown.

    Attributes:
        exact: tensors without any difference from the checkpoint's numbers.
        rounded: tensors whose numbers were rounded once, as their type asks for.
        worst: the largest relative error of a rounded tensor (of its norm).
        problems: what is not as planned.
    """

    exact: int
    rounded: int
    worst: float
    problems: tuple[str, ...]

    def __str__(self) -> str:
        """Print as a line for a reader."""
        count = self.exact + self.rounded
        error = f", relative error at most {self.worst:.2g}" if self.rounded else ""
        return (
            f"{count} tensors and the metadata read back: {self.exact} exact,"
            f" {self.rounded} rounded once{error}"
        )


def read_back(path: Path, plan: Plan, source: Checkpoint) -> Readback:
    """Compare the file at PATH with what PLAN makes of SOURCE."""
    file = GgufFile(path)
    problems = listed(file, plan)
    if problems:
        return Readback(0, 0, 0.0, tuple(problems))
    errors = {name: error_of(file, name, made, plan, source) for name, made in plan.made.items()}
    problems = [
        f"{name} is not what was written" for name, error in errors.items() if error is None
    ]
    known = [error for error in errors.values() if error is not None]
    exact = sum(error == 0 for error in known)
    return Readback(exact, len(known) - exact, max(known, default=0.0), tuple(problems))


def listed(file: GgufFile, plan: Plan) -> list[str]:
    """Say where the metadata of FILE, or its list of tensors, is not as in PLAN."""
    problems = [
        f"metadata {name} differs"
        for name in {**plan.fields, **file.fields}
        if plan.fields.get(name) != file.fields.get(name)
    ]
    planned = [(name, made.stored) for name, made in plan.made.items()]
    if planned != list(file.tensors.items()):
        problems.append("its tensors are not those that were written")
    return problems or apart(file)


def apart(file: GgufFile) -> list[str]:
    """Say where llama.cpp's own reader finds anything else in FILE than ours."""
    theirs = gguf.GGUFReader(file.path)
    metadata = {
        name: b"".join(part.tobytes() for part in field.parts)
        for name, field in theirs.fields.items()
        if not name.startswith("GGUF.")  # its own names for the first bytes
    }
    places = {tensor.name: tensor.data_offset for tensor in theirs.tensors}
    same = (metadata, places) == (file.fields, file.places)
    return [] if same else ["llama.cpp's own reader finds something else in it"]


def error_of(file: GgufFile, name: str, made: Made, plan: Plan, source: Checkpoint) -> float | None:
    """Return the relative error of tensor NAME; ``None`` if rounding does not explain it."""
    if made.rule is None:
        return 0.0 if np.array_equal(file.raw(name), plan.like.raw(name)) else None
    gap = size = 0.0
    start = 0
    for _, rows in made_rows(made, source):
        stored = file.rows(name, slice(start, start + len(rows)))
        start += len(rows)
        if not is_rounding(stored, rows, made.stored.type):
            return None
        gap += square(stored - rows)
        size += square(rows)
    return (gap / size) ** 0.5 if size else 0.0


def is_rounding(stored: Array, exact: Array, kind: str) -> bool:
    """Tell whether STORED is EXACT rounded to KIND; to floats there is one way, by numpy's account."""
    if kind in FLOATS:
        return np.array_equal(stored, exact.astype(dtype_of(FLOATS[kind])).astype(np.float32))
    return bool(np.all(np.abs(stored - exact) <= allowed(exact, kind)))
