"""Core AI assets (``.aimodel``): their constants as tensors, and what they say of themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from .....errors import BadInputError
from ....documents import RECORD as RECORD_FILE
from ....documents import parse_object, read_object
from ....results.records import RECORD
from ....values import Array
from ...base import Header
from ..ranges import chunks
from .process import asset_process

SUFFIX: Final = ".aimodel"
PROGRAM, HASH, METADATA = "main.mlirb", "main.hash", "metadata.json"
VERSION: Final = "2"  # of assets, before the point, that are read here


class Asset:
    """One asset on disk; Core AI itself is asked for its constants when they are first needed.

    Attributes:
        path: the folder.
        metadata: what its maker says of it; ours is under ``RECORD``.
        process: where Core AI opens it.

    Raises:
        BadInputError: it is none, is damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: tuple[Path, ...] = ()
        self.files = tuple(path / name for name in (METADATA, HASH, PROGRAM))
        self.metadata: Mapping[str, Any] = _metadata(path)
        _require_whole(path)
        self.process = asset_process(path)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of every constant by its name: the one its export recorded, else made of the number."""
        text = self.metadata.get(RECORD)
        names = parse_object(str(text), f"{self.path}: {RECORD}").get("names") if text else {}
        known = names if isinstance(names, dict) else {}
        return {str(known.get(str(it), f"constant_{it}")): it for it in self._constants}

    @cached_property
    def headers(self) -> Mapping[str, Header]:
        """The constants whose dtype a tensor file has."""
        return {name: Header(*self._constants[number]) for name, number in self.numbers.items()}

    @cached_property
    def narrow(self) -> bool:
        """Whether it computes in float16, all of it or a part."""
        found: bool = self.process.ask("narrow")
        return found

    @cached_property
    def _constants(self) -> Mapping[int, tuple[str, tuple[int, ...]]]:
        found: Mapping[int, tuple[str, tuple[int, ...]]] = self.process.ask("constants")
        return found

    def read(self, name: str) -> Array:
        """Return constant NAME as an array of its own."""
        found: Array = self.process.ask("read", self.numbers[name])
        return found

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of constant NAME, at most ``CHUNK`` at a time."""
        return chunks(self.read(name), start, stop)


def _metadata(path: Path) -> Mapping[str, Any]:
    """Return what the maker of the asset at PATH says of it."""
    if not path.is_dir():
        kind = "a file" if path.exists() else "not there"
        raise BadInputError(f"{path}: a Core AI asset is a folder, and this is {kind}")
    stored = read_object(path / METADATA, RECORD_FILE)
    version = str(stored.get("assetVersion"))
    if version.partition(".")[0] != VERSION:
        raise BadInputError(
            f"{path}: an asset of version {version}; version {VERSION} is read here, so export it again"
        )
    own = stored.get("creatorDefinedMetadata")
    return own if isinstance(own, dict) else {}


def _require_whole(path: Path) -> None:
    """Refuse an asset whose program is not what its own hash says.

    Raises:
        BadInputError: files are missing, or the program is cut off or changed.
    """
    try:
        program, digest = (path / PROGRAM).read_bytes(), (path / HASH).read_bytes()
    except OSError as error:
        raise BadInputError(f"{path}: not a whole Core AI asset ({error})") from None
    if hashlib.sha256(program).digest() != digest:
        raise BadInputError(
            f"{path}: {PROGRAM} is not what {HASH} says: it is cut off or was changed;"
            " copy or export the asset again"
        )
