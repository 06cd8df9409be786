"""A GGUF file: its metadata byte by byte, its tensors as numbers, a block of rows at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import BadInputError, UnsupportedError
from ...hints import command, unused
from ..values import Array
from .library import gguf
from .types import decode, nbytes

SPLIT: Final = "split.count"
# What the library raises on bytes that are no GGUF file, or half of one.
DAMAGE: Final = (ValueError, LookupError, TypeError, OverflowError, MemoryError)


class Stored(NamedTuple):
    """A tensor of a GGUF file.

    Attributes:
        type: ggml's name of how it is stored, such as ``BF16`` or ``Q8_0``.
        shape: as numpy has it: rows first, while GGUF writes the sizes the other way round.
    """

    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return nbytes(self.shape, self.type)

    def __str__(self) -> str:
        """Print as ``Q8_0[384, 1536]``."""
        return f"{self.type}{list(self.shape)}"


class GgufFile:
    """One GGUF file, opened.

    Attributes:
        path: where it is.
        version: of the format, 2 or 3.
        alignment: of its tensors, bytes.
        fields: the metadata: name -> its bytes on disk, name and type included.
        tensors: name -> what is stored, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _opened(path)
        known = {name: field for name, field in self._reader.fields.items() if _is_metadata(name)}
        found = {tensor.name: tensor for tensor in self._reader.tensors}
        self.version = int(self._reader.fields["GGUF.version"].parts[0][0])
        self.alignment = int(self._reader.alignment)
        self.fields: Mapping[str, bytes] = {name: _bytes(field) for name, field in known.items()}
        self.tensors: Mapping[str, Stored] = {
            name: Stored(tensor.tensor_type.name, tuple(tensor.shape.tolist()[::-1]))
            for name, tensor in found.items()
        }
        self._places = {name: int(tensor.data_offset) for name, tensor in found.items()}
        if (self.value(SPLIT) or 1) > 1:
            raise UnsupportedError(
                f"{path} is one part of {self.value(SPLIT)}; join them first:"
                f" {command('--merge', path, unused(path, '-whole.gguf'), program='llama-gguf-split')}"
            )

    def value(self, name: str) -> Any:
        """Return the metadata called NAME; ``None`` where there is none."""
        field = self._reader.fields.get(name)
        return None if field is None else field.contents()

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, such as ``llama``."""
        return str(self.value("general.architecture"))

    def sized(self, name: str) -> Any:
        """Return the metadata NAME of the architecture, such as ``attention.head_count``."""
        return self.value(f"{self.architecture}.{name}")

    def raw(self, name: str) -> Array:
        """Return the bytes of tensor NAME."""
        return self._bytes(name, 0, self.tensors[name].nbytes)

    def rows(self, name: str, block: slice) -> Array:
        """Return the rows BLOCK of tensor NAME in float32; all but the last axis count as rows."""
        stored = self.tensors[name]
        wide = nbytes(stored.shape[-1:], stored.type)
        data = self._bytes(name, block.start * wide, (block.stop - block.start) * wide)
        return decode(data.reshape(-1, wide), stored.type)

    def _bytes(self, name: str, start: int, count: int) -> Array:
        """Return COUNT bytes of tensor NAME from START: read, for mapped ones would stay in memory."""
        try:
            data = np.fromfile(self.path, np.uint8, count, offset=self._places[name] + start)
        except OSError as error:
            raise BadInputError(f"{self.path}: tensor {name}: {error.strerror}") from error
        if data.size < count:
            raise BadInputError(f"{self.path}: tensor {name}: the file shrank while it was read")
        return data


def _is_metadata(name: str) -> bool:
    return not name.startswith("GGUF.")  # the library's own names for the file's header


def _bytes(field: Any) -> bytes:
    return b"".join(part.tobytes() for part in field.parts)


def _opened(path: Path) -> Any:
    """Open the file at PATH with llama.cpp's library.

    Raises:
        BadInputError: it is no GGUF file, or a damaged one.
        UnsupportedError: it was written for a machine with the other order of bytes.
    """
    if not path.is_file():
        raise BadInputError(f"{path}: no such file; it has to be the GGUF file of the base model")
    try:
        with np.errstate(all="ignore"):
            reader = gguf.GGUFReader(path)
    except DAMAGE as error:
        raise BadInputError(
            f"{path}: not a whole GGUF file ({error}); download or convert it again"
        ) from error
    if reader.byte_order != "I" or reader.endianess != gguf.GGUFEndian.LITTLE:
        raise UnsupportedError(f"{path} is big-endian; make it again without --bigendian")
    return reader
