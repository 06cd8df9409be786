"""A file given as the whole section ``data``: what kind of data its columns make it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ....errors import BadInputError
from .formats import SPLITS
from .plain import is_plain
from .tables import Refused, read_table

KINDS: Final = (  # the columns that make a kind; the first that fits
    ({"prompt", "chosen", "rejected"}, "preferences"),
    ({"query", "document"}, "pairs"),
    ({"text", "label"}, "labelled"),
    ({"text"}, "text"),
    ({"messages"}, "text"),
    ({"prompt", "completion"}, "text"),
)
FOLDER: Final = {
    "train": "train.jsonl",
    "validation": "valid.jsonl",
    "test": "test.jsonl",
}  # mlx-lm's


def inside(folder: Path) -> dict[str, Path]:
    """Return the splits in a FOLDER of several, mlx-lm's files or what ``datasets`` saved; else none."""
    saved = (folder / SPLITS).is_file()
    found = {name: folder / (name if saved else file) for name, file in FOLDER.items()}
    there = {name: path for name, path in found.items() if path.exists()}
    return there if "train" in there else {}


def section_of(path: Path) -> dict[str, Any]:
    """Return the section ``data`` for the file or folder at PATH alone.

    Raises:
        BadInputError: it cannot be read, or its columns are those of no kind.
    """
    if path.suffix == ".npz":
        return {"kind": "series", "train": str(path)}
    first = next((it for it in (path / "train.jsonl", path / SPLITS) if it.is_file()), path)
    file = path / "train" if first.name == SPLITS else first
    if is_plain(file):
        return {"kind": "text", "pack": True, "train": str(path)}
    return {"kind": _kind(file), "train": str(path)}


def _kind(file: Path) -> str:
    row = next((row for _, row in read_table(file, "rows of examples").rows), None)
    columns: Iterable[str] = () if row is None or isinstance(row, Refused) else row
    for needed, kind in KINDS:
        if needed <= set(columns):
            return kind
    found = ", ".join(columns) or "none"
    raise BadInputError(
        f"{file}: no kind of data has the columns {found}; --set data.kind=KIND and data.train, and data.columns"
    )
