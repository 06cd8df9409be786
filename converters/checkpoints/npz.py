"""npz archives, as ``numpy.savez`` and ``mlx.core.savez`` write them."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.lib import format as npy

from ...errors import BadInputError, UnsupportedError, UntrustedError
from ..dtypes import CODE, NUMPY
from ..values import Array
from .base import CHUNK, Header
from .cursor import Cursor

_READERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_BAD: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, struct.error)
_SUFFIX: Final = ".npy"


class Member(NamedTuple):
    """One array of the archive.

    Attributes:
        header: what it is once read.
        stored: dtype as stored; it may be big-endian, and bfloat16 is stored as raw ``V2``.
        fortran: stored in column-major order.
        begin: bytes before the data.
    """

    header: Header
    stored: np.dtype[Any]
    fortran: bool
    begin: int

    @property
    def plain(self) -> bool:
        """Whether the stored bytes are little-endian and C-contiguous."""
        return self.stored.byteorder != ">" and not (self.fortran and len(self.header.shape) > 1)


class NpzFile:
    """One npz archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.ignored: tuple[Path, ...] = ()
        self.metadata: Mapping[str, str] = {}
        self._cursors: dict[str, Cursor] = {}  # within tensors of which a part was read
        try:
            self._members = _members(path)
        except _BAD as error:
            raise BadInputError(f"{path}: not a readable npz archive ({error})") from error
        self.headers: Mapping[str, Header] = {n: m.header for n, m in self._members.items()}

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        header, stored, fortran, _ = self._members[name]
        data = bytearray().join(self._stored(name))
        array = np.frombuffer(data, np.uint8).view(stored)
        array = array.reshape(header.shape, order="F" if fortran else "C")
        if stored.kind == "V":
            return np.asarray(array, order="C").view(NUMPY[header.dtype])
        return np.asarray(array, NUMPY[header.dtype], order="C")

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time.

        A range that goes on where another ended costs nothing to find.
        """
        end = self.headers[name].nbytes
        stop = end if stop is None else stop
        cursor = self._cursors.pop(name, None)
        if cursor is None or cursor.position > start:
            cursor = Cursor(self._whole(name))
        yield from cursor.read(start, stop)
        if stop == end:
            cursor.finish()
        else:
            self._cursors[name] = cursor

    def _whole(self, name: str) -> Iterator[memoryview]:
        if self._members[name].plain:
            yield from self._stored(name)
            return
        data = self.read(name).reshape(-1).view(np.uint8).data
        yield from (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))

    def _stored(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes as stored; reading to the end checks the archive's checksum."""
        member = self._members[name]
        left = member.header.nbytes
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(name + _SUFFIX) as file:
                file.read(member.begin)
                while piece := file.read(CHUNK):
                    left -= len(piece)
                    yield memoryview(piece)
        except _BAD as error:
            raise BadInputError(f"{self.path}: tensor {name}: {error}") from error
        if left:
            raise BadInputError(f"{self.path}: tensor {name}: {left} bytes are missing")


def _members(path: Path) -> dict[str, Member]:
    with zipfile.ZipFile(path) as archive:
        members = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(_SUFFIX)
            where = f"{path}: tensor {name}"
            if name in members or name == info.filename:
                raise BadInputError(f"{where}: twice in the archive, or not an array")
            with archive.open(info) as file:
                members[name] = _member(file, where, info.file_size)
    return members


def _member(file: IO[bytes], where: str, size: int) -> Member:
    """Read the header of the npy FILE of SIZE bytes."""
    version = npy.read_magic(file)
    if version not in _READERS:
        raise BadInputError(f"{where}: npy version {version} is unknown")
    shape, fortran, stored = _READERS[version](file)
    if stored.hasobject:
        raise UntrustedError(f"{where}: holds Python objects, which would run code; save arrays")
    # numpy has no name for bfloat16: MLX and ml_dtypes both store two raw bytes.
    code = "BF16" if stored == np.dtype("V2") else CODE.get(stored.newbyteorder("<"))
    if code is None:
        raise UnsupportedError(
            f"{where}: dtype {stored} is not one of {', '.join(sorted(CODE.values()))}"
        )
    header = Header(code, shape)
    if file.tell() + header.nbytes != size:
        raise BadInputError(
            f"{where}: {header} takes {header.nbytes} bytes, found {size - file.tell()}"
        )
    return Member(header, stored, fortran, file.tell())
