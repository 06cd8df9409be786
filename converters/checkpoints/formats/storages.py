"""Where ``torch.save`` puts a pickle and the storages that it names: in a zip archive, or behind it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol

from ....errors import BadInputError, UnsupportedError
from .archive import Archive
from .pickles import MOST_BYTES, Named, PickleError, load
from .ranges import pieces

ZIPPED: Final = b"PK\x03\x04"
_MAGIC: Final = 0x1950A86A20F9469CFC6C  # the first pickle of a file of the older format
_PROTOCOL: Final = 1001  # the second, in all of them
# Storages by the dtype of their numbers, and the bytes of one.
KINDS: Final[Mapping[str, tuple[str, int]]] = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "QInt8": ("qint8", 1),
    "QUInt8": ("quint8", 1),
    "QInt32": ("qint32", 4),
    "QUInt4x2": ("quint4x2", 1),
    "QUInt2x4": ("quint2x4", 1),
    "Untyped": ("uint8", 1),
}


class Storage(NamedTuple):
    """Numbers that tensors are views of: their dtype, the storage's name, its size in bytes."""

    dtype: str
    key: str
    nbytes: int


class Source(Protocol):
    """A file of ``torch.save``: what its pickle makes, and the bytes of the storages."""

    content: Any

    def stream(self, key: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of storage KEY, at most ``CHUNK`` at a time."""
        ...


def open_source(path: Path) -> Source:
    """Open the file at PATH; storages are checked to be there whole, and are not read.

    Raises:
        BadInputError: it is damaged, or was saved on a big-endian machine.
        PickleError: its pickle is damaged.
        CodeError: its pickle wants code.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(len(ZIPPED)) == ZIPPED
        return Zipped(path) if zipped else Legacy(path)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error


class Zipped:
    """A zip archive; whatever is read of it was compared with its checksum before."""

    def __init__(self, path: Path) -> None:
        self._archive = Archive(path, "PyTorch file")
        tops = {name.partition("/")[0] for name in self._archive.members}
        self._top = next(iter(tops)) if len(tops) == 1 else ""
        members = self._archive.members
        if self._name("data.pkl") not in members or self._name("constants.pkl") in members:
            raise PickleError("a zip archive, but not of a state dict")
        if members[self._name("data.pkl")].nbytes > MOST_BYTES:
            raise PickleError(f"its pickle has more than {MOST_BYTES:,} bytes")
        for name in members:
            if not name.startswith(self._name("data/")):  # few and small, and some are never read
                self._archive.verify(name)
        _check_order(path, self._stamps() == b"big")
        self.content = load(io.BytesIO(self._read("data.pkl")), self._storage)

    def _name(self, name: str) -> str:
        return f"{self._top}/{name}"

    def _read(self, name: str, absent: bytes = b"") -> bytes:
        there = self._name(name) in self._archive.members
        return self._archive.content(self._name(name)) if there else absent

    def _stamps(self) -> bytes:
        """Return the order of bytes, after a look at what else torch.save writes of a file."""
        version = self._read(".data/version") or self._read("version")  # torch.load wants one
        others = {
            name: self._read(name, b"1") for name in (".format_version", ".storage_alignment")
        }
        for name, text in {"version": version, **others}.items():
            if not re.fullmatch(rb"\d{1,9}\s*", text):
                raise PickleError(f"its {name} is no number")
        if not self._read(".data/serialization_id").isascii():
            raise PickleError("its serialization_id is no text")
        order = self._read("byteorder", b"little")
        if order not in (b"little", b"big"):
            raise PickleError("its order of bytes is none")
        return order

    def _storage(self, saved: Any) -> Storage:
        storage = _storage(saved)
        member = self._archive.members.get(self._name(f"data/{storage.key}"))
        if member is None or member.nbytes != storage.nbytes:
            found = "is missing" if member is None else f"has {member.nbytes:,}"
            raise PickleError(f"storage {storage.key} of {storage.nbytes:,} bytes {found}")
        return storage

    def stream(self, key: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of storage KEY, at most ``CHUNK`` at a time."""
        return self._archive.stream(self._name(f"data/{key}"), start, stop)


class Legacy:
    """A file as PyTorch wrote it before version 1.6: pickles, then storages, without a checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._storages: dict[str, Storage] = {}
        with path.open("rb") as file:
            if load(file) != _MAGIC:
                raise PickleError("it starts like no file of torch.save")
            if load(file) != _PROTOCOL:
                raise PickleError(f"its protocol is not {_PROTOCOL}")
            system = load(file)
            _check_order(path, isinstance(system, dict) and system.get("little_endian") is False)
            self.content = load(file, self._storage)
            self._places = dict(self._placed(file, load(file)))

    def _storage(self, saved: Any) -> Storage:
        storage = _storage(saved)
        if self._storages.setdefault(storage.key, storage) != storage:
            raise PickleError(f"storage {storage.key} has two sizes")
        return storage

    def _placed(self, file: IO[bytes], keys: Any) -> Iterator[tuple[str, int]]:
        """Yield where each storage begins; all of them have to lie in FILE."""
        begin, end = file.tell(), self.path.stat().st_size
        if not isinstance(keys, list) or {*map(str, keys)} != self._storages.keys():
            raise PickleError("its storages are not those of its tensors")
        for key in keys:
            file.seek(begin)
            _, item = _sizes(self._storages[key].dtype)
            nbytes = int.from_bytes(file.read(8), "little", signed=True) * item
            if nbytes != self._storages[key].nbytes or begin + 8 + nbytes > end:
                raise PickleError(f"storage {key} is cut short or of another size")
            yield key, begin + 8
            begin += 8 + nbytes

    def stream(self, key: str, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of storage KEY, at most ``CHUNK`` at a time."""
        begin = self._places[key]
        return pieces(self.path, begin + start, begin + stop, f"storage {key}")


def _sizes(dtype: str) -> tuple[str, int]:
    return next(kind for kind in KINDS.values() if kind[0] == dtype)


def _storage(saved: Any) -> Storage:
    """Return the storage that a pickle names by SAVED.

    Raises:
        PickleError: it names none.
    """
    match saved:
        case ("storage", Named(name), str(key), _, int(count), *view) if not any(view):
            kind = name.rpartition(".")[2].removesuffix("Storage")
            if kind in KINDS and count >= 0:
                dtype, item = KINDS[kind]
                return Storage(dtype, key, count * item)
    raise PickleError("a storage is not described as torch.save does")


def _check_order(path: Path, big: bool) -> None:
    if big:
        raise UnsupportedError(f"{path}: saved on a big-endian machine; save it again on another")
