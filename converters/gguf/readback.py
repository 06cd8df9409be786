"""A written file read again, by our reader and llama.cpp's own, and compared number by number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..checkpoints import Checkpoint
from ..common.dtypes import dtype_of
from ..quantization import Blocks
from ..values import Array
from .file import GgufFile
from .library import gguf
from .plan import Made, Plan
from .proof import LOSSY, square
from .rows import Rows, dense, made_rows
from .types import FLOATS, TYPES, allowed


class Readback(NamedTuple):
    """What reading the file again has shown.

    Attributes:
        exact: tensors without any difference from the checkpoint's numbers.
        rounded: tensors whose numbers were rounded once, as their type asks for.
        worst: the largest relative error of a rounded tensor (of its norm).
        problems: what is not as planned.
        lost: relative error of each tensor whose codes were not kept exactly.
    """

    exact: int
    rounded: int
    worst: float
    problems: tuple[str, ...]
    lost: Mapping[str, float] = MappingProxyType({})

    def lines(self) -> tuple[str, ...]:
        """Return what was seen, a line each."""
        lost = (f"{name}: relative error {error:.2g}" for name, error in self.lost.items())
        return (str(self), *lost)

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
    lost = {
        name: error
        for name, made in plan.made.items()
        if made.choice and made.choice.why and (error := errors[name]) is not None
    }
    return Readback(exact, len(known) - exact, max(known, default=0.0), tuple(problems), lost)


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
    for member in made.members:
        for rows in made_rows(source, member, made.rule, made.wanted):
            exact = dense(rows)
            stored = file.rows(name, slice(start, start + len(exact)))
            start += len(exact)
            if not is_kept(stored, rows, exact, made):
                return None
            gap += square(stored - exact)
            size += square(exact)
    return (gap / size) ** 0.5 if size else 0.0


def is_kept(stored: Array, rows: Rows, exact: Array, made: Made) -> bool:
    """Tell whether STORED is what MADE says of ROWS, whose values in float32 are EXACT."""
    choice = made.choice
    if choice is None or not isinstance(rows, Blocks):
        return is_rounding(stored, exact, made.stored.type)
    if choice.codes and not choice.error:
        return np.array_equal(stored, exact)
    if not choice.codes and made.stored.type in TYPES:
        return is_rounding(stored, exact, made.stored.type)
    if not choice.codes:  # chosen again by the library of llama.cpp, which promises no bound
        return square(stored - exact) <= LOSSY**2 * square(exact)
    scales = np.abs(rows.parts["scales"].astype(np.float64))
    limit = np.repeat(choice.error * scales, rows.scheme.group_size, axis=-1)
    return bool(np.all(np.abs(stored - rows.values()) <= limit + np.abs(exact) * 2.0**-22))


def is_rounding(stored: Array, exact: Array, kind: str) -> bool:
    """Tell whether STORED is EXACT rounded to KIND; to floats there is one way, by numpy's account."""
    if kind in FLOATS:
        return np.array_equal(stored, exact.astype(dtype_of(FLOATS[kind])).astype(np.float32))
    return bool(np.all(np.abs(stored - exact) <= allowed(exact, kind)))
