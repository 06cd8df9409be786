"""Files of documents, read whole within the size of their kind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ...errors import BadInputError
from .kinds import Kind

MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")  # of UTF-8 and UTF-16, as editors write them


def read_text(path: Path, kind: Kind) -> str:
    """Return the text in the file at PATH.

    Raises:
        BadInputError: it is larger than its KIND is, nothing that ends, or not UTF-8.
        OSError: it cannot be read.
    """
    return decoded(read_bytes(path, kind), path, kind)


def read_bytes(path: Path, kind: Kind) -> bytes:
    """Return the content of the file at PATH; fails as ``read_text`` does."""
    with open(path, "rb", opener=_without_waiting) as file:  # Path.open has no opener
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadInputError(f"{path}: not a file with an end; put the {kind.what} itself there")
        data = b"" if status.st_size > kind.largest else file.read(kind.largest + 1)
    size = max(status.st_size, len(data))
    if size > kind.largest:
        limit = f"more than the {kind.largest:,} that a {kind.what} may have"
        raise BadInputError(f"{path}: {size:,} bytes are {limit}; {kind.todo}")
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe that nobody writes to would wait for ever


def decoded(data: bytes, where: object, kind: Kind) -> str:
    """Return DATA, from WHERE, as text.

    Raises:
        BadInputError: it is not plain UTF-8.
    """
    if data.startswith(MARKS):
        raise BadInputError(f"{where}: begins with a byte order mark; save it as plain UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte {error.start:,})"
        raise BadInputError(f"{where}: {what}; {kind.todo}") from None
