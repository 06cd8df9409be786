"""Small answers that take seconds to find out, kept on disk between runs.

What is kept follows from its key alone; a key holds everything that the answer depends on, the
versions of the libraries that were asked among it. A damaged or missing file is no answer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from ... import __version__
from ...errors import BadInputError
from ..documents import ANSWER, parse_json

MOST: Final = 200  # answers kept; the ones not used for longest go first
VARIABLE: Final = "WEIGHBRIDGE_CACHE"  # another folder, or empty to keep nothing


def folder() -> Path | None:
    """Return where answers are kept; ``None`` where nothing is."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(user_cache_path("weighbridge", appauthor=False))


def place(kind: str, key: Sequence[Any]) -> Path | None:
    """Return the file of the answer of KIND to KEY, which must be JSON."""
    where = folder()
    text = json.dumps([__version__, kind, *key], sort_keys=True)
    return where / f"{kind}-{fingerprint(text)}.json" if where else None


def fingerprint(text: str) -> str:
    """Return a short hash of TEXT; before an answer it tells that the answer is whole and unedited."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def recall(kind: str, key: Sequence[Any]) -> Any:
    """Return the answer of KIND that is kept for KEY, ``None`` if there is none."""
    path = place(kind, key)
    if path is None:
        return None
    try:
        seal, _, text = path.read_text(encoding="utf-8").partition("\n")
        path.touch()
    except (OSError, ValueError):
        return None
    if seal != fingerprint(text):
        return None
    with suppress(BadInputError):
        return parse_json(text, path, ANSWER)
    return None


def keep(kind: str, key: Sequence[Any], answer: Any) -> None:
    """Keep ANSWER, which must be JSON; a disk that is full or forbidden is no error."""
    path = place(kind, key)
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        text = json.dumps(answer)
        try:
            draft.write_text(f"{fingerprint(text)}\n{text}", encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        forget(path.parent)


def forget(where: Path) -> None:
    """Remove the answers that were not used for longest."""
    kept = sorted(where.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[MOST:]:
        path.unlink(missing_ok=True)
