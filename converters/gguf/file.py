"""A GGUF file: its metadata byte by byte, its tensors as numbers, a block of rows at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import BadInputError, UnsupportedError
from ..common.contents import GGUF, TEXT, require
from ..common.hints import command, unused
from ..values import Array
from .header import Stored, read_header
from .types import decode, nbytes

SPLIT: Final = "split.count"


class GgufFile:
    """One GGUF file, opened.

    Attributes:
        path: where it is.
        version: of the format, 2 or 3.
        alignment: of its tensors, bytes.
        fields: the metadata: name -> its bytes on disk, name and type included.
        tensors: name -> what is stored, in the order of the file.
        places: name -> offset of its first byte in the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require(path, "a GGUF file", {GGUF, TEXT, "empty"})  # a damaged one may begin like a text
        header = read_header(path)
        self.version, self.alignment = header.version, header.alignment
        self._fields = header.fields
        self.fields: Mapping[str, bytes] = {n: field.data for n, field in header.fields.items()}
        self.tensors: Mapping[str, Stored] = header.tensors
        self.places: Mapping[str, int] = header.places
        parts = self.count(SPLIT) or 1
        if parts > 1:
            raise UnsupportedError(
                f"{path} is one part of {parts}; join them first:"
                f" {command('--merge', path, unused(path, '-whole.gguf'), program='llama-gguf-split')}"
            )

    def value(self, name: str) -> Any:
        """Return the metadata called NAME; ``None`` where there is none, or a list of texts."""
        field = self._fields.get(name)
        return None if field is None else field.value()

    def texts(self, name: str) -> list[str] | None:
        """Return the list of texts called NAME in the metadata; ``None`` where there is none."""
        field = self._fields.get(name)
        return None if field is None else field.texts()

    def count(self, name: str, block: int = 0) -> int | None:
        """Return the number NAME of the metadata, of BLOCK where every block has its own.

        Raises:
            BadInputError: it is no whole number, or a negative one.
        """
        found = self.value(name)
        if isinstance(found, list):
            found = found[block] if block < len(found) else None
        if found is not None and (type(found) is not int or found < 0):
            raise BadInputError(f"{self.path}: {name} is {found!r:.40}, which counts nothing")
        return found

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, such as ``llama``."""
        return str(self.value("general.architecture"))

    def sized(self, name: str, block: int = 0) -> int | None:
        """Return ``count`` of NAME of the architecture, such as ``attention.head_count``."""
        return self.count(f"{self.architecture}.{name}", block)

    def raw(self, name: str) -> Array:
        """Return the bytes of tensor NAME."""
        return self._bytes(name, 0, self.tensors[name].nbytes)

    def rows(self, name: str, block: slice) -> Array:
        """Return the rows BLOCK of tensor NAME in float32; all but the last axis count as rows."""
        return decode(self.packed(name, block), self.tensors[name].type)

    def packed(self, name: str, block: slice) -> Array:
        """Return the rows BLOCK of tensor NAME as they are stored, uint8, shape ``(rows, bytes)``."""
        stored = self.tensors[name]
        wide = nbytes(stored.shape[-1:], stored.type)
        data = self._bytes(name, block.start * wide, (block.stop - block.start) * wide)
        return data.reshape(-1, wide)

    def _bytes(self, name: str, start: int, count: int) -> Array:
        """Return COUNT bytes of tensor NAME from START: read, for mapped ones would stay in memory."""
        try:
            data = np.fromfile(self.path, np.uint8, count, offset=self.places[name] + start)
        except OSError as error:
            raise BadInputError(f"{self.path}: tensor {name}: {error.strerror}") from error
        if data.size < count:
            raise BadInputError(f"{self.path}: tensor {name}: the file shrank while it was read")
        return data
