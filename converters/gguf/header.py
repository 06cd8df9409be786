"""The header of a GGUF file, every count in it held against the bytes that are left.

llama.cpp's own reader in Python loops as often as a header claims, and expands every array.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from ...errors import BadInputError, UnsupportedError
from .library import gguf
from .types import nbytes

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32  # of tensors, where the metadata has no other
MOST_ALIGNMENT: Final = 1 << 20
MOST_AXES: Final = 4  # GGML_MAX_DIMS
STRING, ARRAY, UINT32 = 8, 9, 4
# Numbers by the type that the format gives them: as struct unpacks them.
NUMBERS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    UINT32: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
LEAST_FIELD, LEAST_TENSOR, LEAST_STRING = 13, 32, 8  # bytes


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


class Field(NamedTuple):
    """Metadata: all its bytes on disk, and how many of them are its name and their count."""

    data: bytes
    named: int

    @property
    def kind(self) -> int:
        """The number of its type."""
        return int.from_bytes(self.data[self.named : self.named + 4], "little")

    def texts(self) -> list[str] | None:
        """Return the list of texts; ``None`` where it is something else."""
        at = self.named + 4
        if self.kind != ARRAY or struct.unpack_from("<I", self.data, at) != (STRING,):
            return None
        found, at = [], at + 12
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 8], "little")
            found.append(self.data[at + 8 : at + 8 + size].decode("utf-8", "replace"))
            at += 8 + size
        return found

    def value(self) -> Any:
        """Return the number, the text, or the list of numbers; ``None`` for a list of texts."""
        kind, at = self.kind, self.named + 4
        if kind in NUMBERS:
            return struct.unpack_from(f"<{NUMBERS[kind]}", self.data, at)[0]
        if kind == STRING:
            return self.data[at + 8 :].decode("utf-8", "replace")
        item, count = struct.unpack_from("<IQ", self.data, at)
        wanted = NUMBERS.get(item)
        return wanted and list(struct.unpack_from(f"<{count}{wanted}", self.data, at + 12))


class Header(NamedTuple):
    """What a file says before its tensors.

    Attributes:
        version: of the format, 2 or 3.
        alignment: of its tensors, bytes.
        fields: the metadata by name.
        tensors: name -> what is stored, in the order of the file.
        places: name -> offset of its first byte in the file.
    """

    version: int
    alignment: int
    fields: dict[str, Field]
    tensors: dict[str, Stored]
    places: dict[str, int]


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at PATH, and check that its tensors are there whole.

    Raises:
        BadInputError: it is no GGUF file, or a damaged one.
        UnsupportedError: it was written for a machine with the other order of bytes.
    """
    if path.is_dir():
        raise BadInputError(f"{path} is a directory; name the GGUF file itself")
    if not path.is_file():
        raise BadInputError(f"{path}: no such file; it has to be the GGUF file of the base model")
    try:
        with path.open("rb") as file:
            return _header(_Reader(file, path.stat().st_size))
    except _BigEndianError:
        raise UnsupportedError(f"{path} is big-endian; make it again without --bigendian") from None
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(
            f"{path}: not a whole GGUF file ({what}); download or convert it again"
        ) from error


class _BigEndianError(ValueError):
    """The file has the other order of bytes."""


class _Reader:
    """A file of SIZE bytes that is read forward; nothing is allocated for bytes that are not there.

    Attributes:
        left: bytes that were not read yet.
        taken: those that were since it was emptied.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.size, self.left = file, size, size
        self.taken = bytearray()

    def take(self, count: int) -> bytes:
        """Return the next COUNT bytes."""
        if count > self.left:
            raise ValueError(f"it claims {count:,} bytes where {self.left:,} are left")
        data = self._file.read(count)
        self.left -= count
        self.taken += data
        return data

    def number(self, code: str) -> int:
        """Return the next number, of the kind that struct calls CODE."""
        return int(struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0])

    def count(self, least: int) -> int:
        """Return the next number, which counts things of at LEAST so many bytes."""
        count = self.number("Q")
        if count * least > self.left:
            raise ValueError(f"it claims {count:,} entries in {self.left:,} bytes")
        return count

    def text(self) -> str:
        """Return the next string."""
        return self.take(self.count(1)).decode("utf-8")

    def skip(self, kind: int) -> None:
        """Pass a value of the type KIND."""
        if kind == STRING:
            self.take(self.count(1))
        elif kind == ARRAY:
            self._skip_array(self.number("I"))
        else:
            self.take(_width(kind))

    def _skip_array(self, item: int) -> None:
        if item == STRING:
            for _ in range(self.count(LEAST_STRING)):
                self.take(self.count(1))
        else:
            self.take(self.count(_width(item)) * _width(item))


def _width(kind: int) -> int:
    """Return the bytes of a number of the type KIND."""
    if kind not in NUMBERS:
        raise ValueError(f"metadata of the type {kind} is unknown, or an array of arrays")
    return struct.calcsize(f"<{NUMBERS[kind]}")


def _header(reader: _Reader) -> Header:
    if reader.take(4) != MAGIC:
        raise ValueError("it does not start with GGUF")
    version = reader.number("I")
    if not version % (1 << 16):
        raise _BigEndianError
    if version not in VERSIONS:
        raise ValueError(f"version {version} of the format is not read")
    tensors = reader.count(LEAST_TENSOR)
    fields = dict(_unique(_fields(reader)))
    alignment = _alignment(fields.get("general.alignment"))
    infos = dict(_unique(_infos(reader, tensors)))
    position = reader.size - reader.left
    begin = position + -position % alignment
    places = dict(_places(infos, begin, alignment, reader.size))
    return Header(version, alignment, fields, {n: info[0] for n, info in infos.items()}, places)


def _unique(items: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for name, item in items:
        if name in seen:
            raise ValueError(f"{name} is in it twice")
        seen.add(name)
        yield name, item


def _fields(reader: _Reader) -> Iterator[tuple[str, Field]]:
    for _ in range(reader.count(LEAST_FIELD)):
        reader.taken.clear()
        name = reader.text()
        named = len(reader.taken)
        reader.skip(reader.number("I"))
        yield name, Field(bytes(reader.taken), named)


def _alignment(field: Field | None) -> int:
    found = ALIGNMENT if field is None else field.value()
    if field and field.kind != UINT32:
        raise ValueError("its alignment is not of the type that the format has for it")
    if not 0 < found <= MOST_ALIGNMENT or found & (found - 1):
        raise ValueError(f"an alignment of {found:,} is not possible")
    return int(found)


def _infos(reader: _Reader, count: int) -> Iterator[tuple[str, tuple[Stored, int]]]:
    """Yield name, kind and offset of COUNT tensors."""
    for _ in range(count):
        reader.taken.clear()
        name = reader.text()
        axes = reader.number("I")
        if not 0 < axes <= MOST_AXES:
            raise ValueError(f"tensor {name} has {axes:,} axes")
        shape = tuple(reader.number("Q") for _ in range(axes))
        stored = Stored(_type(name, reader.number("I"), shape), shape[::-1])
        yield name, (stored, reader.number("Q"))


def _type(name: str, code: int, shape: tuple[int, ...]) -> str:
    """Return ggml's name of the type CODE of tensor NAME, whose rows have to be whole blocks."""
    try:
        kind = gguf.GGMLQuantizationType(code)
    except ValueError:
        raise ValueError(f"tensor {name} is of a type {code} that is unknown") from None
    if 0 in shape or shape[0] % gguf.GGML_QUANT_SIZES[kind][0]:
        raise ValueError(f"tensor {name} of {kind.name} cannot have the sizes {list(shape)}")
    return str(kind.name)


def _places(
    infos: dict[str, tuple[Stored, int]], begin: int, alignment: int, size: int
) -> Iterator[tuple[str, int]]:
    """Yield where each tensor begins: one after the other, as llama.cpp demands too."""
    expected = 0
    for name, (stored, offset) in infos.items():
        if offset != expected or begin + offset + stored.nbytes > size:
            raise ValueError(f"tensor {name}, {stored}, does not lie within it behind the others")
        yield name, begin + offset
        expected += stored.nbytes + -stored.nbytes % alignment
