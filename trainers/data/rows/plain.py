"""Plain files of text: every file is one text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ....converters.common.os_errors import explained
from ....errors import BadInputError
from .tables import is_table

PLAIN: Final = "*.txt"


def is_plain(path: Path) -> bool:
    """Say whether PATH is a file of text, or a folder of them, and not one of rows."""
    if is_table(path):
        return False
    return not path.is_dir() or next(path.rglob(PLAIN), None) is not None


def read_plain(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and content of the file at PATH, or of every ``.txt`` file in the folder, by name.

    Raises:
        BadInputError: a file cannot be read.
    """
    for file in sorted(path.rglob(PLAIN)) if path.is_dir() else [path]:
        try:
            yield str(file), file.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInputError(explained(error, file) or str(error)) from None
        except UnicodeDecodeError as error:
            raise BadInputError(f"{file}: cannot read it as text: {error}") from None
