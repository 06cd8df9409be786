"""npz archives, as ``numpy.savez`` and ``mlx.core.savez`` write them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib import format as npy

from ....errors import BadInputError, UnsupportedError, UntrustedError
from ...common.dtypes import CODE, NUMPY
from ...values import Array
from ..base import Header, is_shape
from .archive import Archive
from .ranges import Cursor, chunks, gather

_READERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_SUFFIX: Final = ".npy"
LONGEST_HEADER: Final = 10_000  # bytes; numpy refuses longer ones too


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
    """One npz archive; no byte of an array is given out before its checksum was compared.

    Attributes:
        names: all arrays in it; ``headers`` has those of them that were WANTED, by default all.

    Raises:
        BadInputError: the archive, or the header of an array that is wanted, is damaged.
        UnsupportedError: an array that is wanted has a dtype that no tensor has.
        UntrustedError: it holds Python objects.
    """

    def __init__(self, path: Path, wanted: Container[str] | None = None) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.ignored: tuple[Path, ...] = ()
        self.metadata: Mapping[str, str] = {}
        self._cursors: dict[str, Cursor] = {}  # within tensors of which a part was read
        self._archive = Archive(path, "npz archive")
        if strange := [name for name in self._archive.members if not name.endswith(_SUFFIX)]:
            raise BadInputError(f"{path}: {strange[0]} in it is not an array")
        self.names = tuple(name.removesuffix(_SUFFIX) for name in self._archive.members)
        chosen = [name for name in self.names if wanted is None or name in wanted]
        self._members = {name: self._member(name) for name in chosen}
        self.headers: Mapping[str, Header] = {n: m.header for n, m in self._members.items()}

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        header, stored, fortran, _ = self._members[name]
        array = gather(self._stored(name), header.nbytes).view(stored)
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
        if stop < end:
            self._cursors[name] = cursor

    def _whole(self, name: str) -> Iterator[memoryview]:
        return self._stored(name) if self._members[name].plain else chunks(self.read(name))

    def _stored(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes as stored."""
        return self._archive.stream(name + _SUFFIX, self._members[name].begin)

    def _member(self, name: str) -> Member:
        """Read the header of array NAME."""
        where, size = f"{self.path}: tensor {name}", self._archive.members[name + _SUFFIX].nbytes
        file = io.BytesIO(self._archive.head(name + _SUFFIX, LONGEST_HEADER))
        shape, fortran, stored = _header(file, where)
        if stored.hasobject:
            raise UntrustedError(
                f"{where}: holds Python objects, which would run code; save arrays"
            )
        # numpy has no name for bfloat16: MLX and ml_dtypes both store two raw bytes.
        code = "BF16" if stored == np.dtype("V2") else CODE.get(stored.newbyteorder("<"))
        if code is None:
            raise UnsupportedError(
                f"{where}: dtype {stored} is not one of {', '.join(sorted(CODE.values()))}"
            )
        header = Header(code, shape)
        if file.tell() + header.nbytes != size:
            found = size - file.tell()
            raise BadInputError(f"{where}: {header} takes {header.nbytes} bytes, found {found}")
        if not header.nbytes:  # otherwise it is done when the bytes are read
            self._archive.verify(name + _SUFFIX)
        return Member(header, stored, fortran, file.tell())


def read_npz(path: Path) -> dict[str, Array]:
    """Return all arrays of the archive at PATH, little-endian and in C order."""
    file = NpzFile(path)
    return {name: file.read(name) for name in file.names}


def _header(file: io.BytesIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype from the first bytes of an npy FILE.

    Raises:
        BadInputError: it has no such header.
    """
    try:
        read = _READERS[npy.read_magic(file)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2's headers, which are read all the same
            shape, fortran, stored = read(file)
    except KeyError as error:
        raise BadInputError(f"{where}: npy version {error} is unknown") from error
    except Exception as error:  # numpy's, on junk: ValueError, TokenError, MemoryError ...
        what = str(error).partition("\n")[0] or type(error).__name__
        raise BadInputError(f"{where}: not a readable npy header ({what})") from error
    if not is_shape(shape):
        raise BadInputError(f"{where}: shape {list(shape)} is not possible")
    return shape, fortran, stored
