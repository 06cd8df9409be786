"""What a file is, by its first bytes: a picture given for a model is called one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from ...errors import BadInputError

JSON, ZIP, TAR, GGUF, TEXT = "JSON", "a zip archive", "a tar archive", "a GGUF file", "text"
_HEAD: Final = 4096  # bytes that are looked at
_TAR: Final = slice(257, 262)
_MAGIC: Final[Mapping[bytes, str]] = {
    b"PK\x03\x04": ZIP,
    b"GGUF": GGUF,
    b"\x89PNG\r\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF-": "a PDF document",
    b"\x89HDF\r\n": "an HDF5 file",
    b"\x93NUMPY": "a single NumPy array",
    b"PAR1": "a Parquet table",
    b"ARROW1": "an Arrow table",
    b"SQLite format 3": "an SQLite database",
    b"\x1f\x8b\x08": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself (run git lfs pull)",
    b"<!doctype html": "an HTML page",
    b"<html": "an HTML page",
}
_SUFFIXES: Final[Mapping[str, str]] = {
    ".csv": "a CSV table",
    ".tsv": "a table of tab-separated values",
    ".md": "Markdown",
    ".json": JSON,
    ".jsonl": "JSON lines",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".py": "Python code",
}


def kind_of(path: Path) -> str | None:
    """Return what the file at PATH is, ``None`` if it is of no kind that is known here.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "empty"
    if head[8:9] == b"{" and not any(head[4:8]):  # a header's length and JSON: safetensors
        return None
    known = next(
        (kind for magic, kind in _MAGIC.items() if head.lower().startswith(magic.lower())), None
    )
    if known or head[_TAR] == b"ustar":
        return known or TAR
    return _SUFFIXES.get(path.suffix.lower(), TEXT) if _is_text(head) else None


def require(path: Path, wanted: str, kinds: Collection[str] = ()) -> None:
    """Refuse a file that is recognised as of another kind than KINDS; WANTED says what it should be.

    Raises:
        BadInputError: it is; says of which.
    """
    kind = kind_of(path) if path.is_file() else None
    if kind is not None and kind not in kinds:
        raise BadInputError(f"{path} is {kind}; expected {wanted}")


def _is_text(head: bytes) -> bool:
    """Say whether HEAD is the begin of a text; its last letter may be cut."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(head) < _HEAD or error.start < _HEAD - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(letter.isprintable() or letter in "\n\r\t\f" for letter in text)
