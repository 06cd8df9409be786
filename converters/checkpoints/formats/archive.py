"""Zip archives: members found in full, their bytes used only after their checksum was verified."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, NamedTuple

from ....errors import BadInputError, legible
from ..base import CHUNK
from .ranges import pieces

_LOCAL: Final = struct.Struct("<4s22xHH")  # before a member: signature, lengths of name and extra
_SIGNATURE: Final = b"PK\x03\x04"
# Of the directory: an entry (lengths of name, extra and comment), and the records that end it (disks,
# numbers of entries, its size and where it begins).
_ENTRY: Final = struct.Struct("<28xHHH12x")
_WIDE_END: Final = struct.Struct("<4sQ4xIIQQQQ")
_LOCATOR: Final = struct.Struct("<4sIQI")
_END: Final = struct.Struct("<4sHHHHII2x")
_WIDE: Final = (0xFFFF, 0xFFFFFFFF)  # the number stands in the record of 64 bits
_DESCRIPTOR: Final = 24  # bytes that may follow a member: its checksum and sizes once more
_UTF8 = 0x800  # of the flags
_FLAGS = _UTF8 | 0x8 | 0x6  # besides: sizes follow the member; how hard it was compressed
_RATIO: Final = 1032  # no deflated byte becomes more bytes than these (zlib's documentation)
_SHOWN: Final = 200  # characters of a name that a message quotes
# What the standard library's reader of directories raises on damage.
_DAMAGE: Final = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error)


class Member(NamedTuple):
    """One file in an archive.

    Attributes:
        begin: offset of its bytes in the archive.
        packed: how many bytes it takes there.
        nbytes: how many bytes it has.
        crc: the checksum of these.
        deflated: whether it is compressed.
    """

    begin: int
    packed: int
    nbytes: int
    crc: int
    deflated: bool


class Archive:
    """The zip archive at PATH, of a KIND that errors name.

    Raises:
        BadInputError: it is none, or a damaged one, or members overlap, hide or are named twice.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._verified: set[str] = set()
        try:
            self.members: Mapping[str, Member] = dict(_members(path))
        except _DAMAGE as error:
            raise BadInputError(f"{path}: not a readable {kind} ({error})") from error
        except OSError as error:
            raise BadInputError(f"{path}: {error.strerror or error}") from error

    def content(self, name: str) -> bytes:
        """Return all bytes of member NAME; errors as in ``stream``."""
        return b"".join(map(bytes, self.stream(name)))

    def head(self, name: str, count: int) -> bytes:
        """Return the first COUNT bytes of member NAME, before its checksum is compared."""
        return b"".join(map(bytes, self._pieces(name, 0, count)))

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Return the bytes START to STOP of member NAME, at most ``CHUNK`` at a time.

        The first time its checksum is compared: before the last piece is given out if this is all
        of a member that is not compressed, else before the first one, by reading it through here.

        Raises:
            BadInputError: the member is damaged.
        """
        member = self.members[name]
        stop = member.nbytes if stop is None else stop
        if (
            start == 0 < stop == member.nbytes
            and not member.deflated
            and name not in self._verified
        ):
            return self._compared(name)
        self.verify(name)
        return self._pieces(name, start, stop)

    def _compared(self, name: str) -> Iterator[memoryview]:
        """Yield all bytes of member NAME, its last piece after its checksum was compared."""
        crc, left = 0, self.members[name].nbytes
        for piece in self._pieces(name, 0, left):
            crc, left = zlib.crc32(piece, crc), left - len(piece)
            if not left:
                self._compare(name, crc)
            yield piece

    def verify(self, name: str) -> None:
        """Compare the checksum of member NAME with its bytes, once.

        Raises:
            BadInputError: they differ, or there are more or fewer bytes than it has.
        """
        if name in self._verified:
            return
        member, crc, count = self.members[name], 0, 0
        for piece in self._pieces(name, 0, member.nbytes + 1):
            crc, count = zlib.crc32(piece, crc), count + len(piece)
        self._compare(name, crc if count == member.nbytes else None)

    def _compare(self, name: str, crc: int | None) -> None:
        if crc != self.members[name].crc:
            raise BadInputError(
                f"{self.path}: {name} is damaged: its bytes do not have the checksum that the"
                " archive records; copy, download or save the file again"
            )
        self._verified.add(name)

    def _pieces(self, name: str, start: int, stop: int) -> Iterator[memoryview]:
        member = self.members[name]
        if not member.deflated:
            end = min(stop, member.nbytes)
            yield from pieces(self.path, member.begin + start, member.begin + end, name)
            return
        position = 0
        for piece in self._inflated(name):
            yield from filter(None, [piece[max(start - position, 0) : max(stop - position, 0)]])
            position += len(piece)
            if position >= stop:
                return

    def _inflated(self, name: str) -> Iterator[memoryview]:
        """Yield the bytes of the compressed member NAME; they may be more or fewer than it has."""
        member, inflate = self.members[name], zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for piece in pieces(self.path, member.begin, member.begin + member.packed, name):
                data = inflate.decompress(piece, CHUNK)
                while data:
                    yield memoryview(data)
                    data = inflate.decompress(inflate.unconsumed_tail, CHUNK)
        except zlib.error as error:
            raise BadInputError(f"{self.path}: {name} is damaged ({error})") from error


def _members(path: Path) -> Iterator[tuple[str, Member]]:
    """Yield the members of the archive at PATH, which lie one after the other and fill it."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        end, seen = 0, set[str]()
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            if info.filename in seen:
                raise ValueError(f"{legible(info.filename, _SHOWN)} is twice in it")
            _check_gap(end, info.header_offset)
            member = _member(info, file)
            yield info.filename, member
            seen.add(info.filename)
            end = member.begin + member.packed
        _check_gap(end, archive.start_dir)
        _check_directory(file, archive.start_dir, len(seen))


def _check_directory(file: IO[bytes], begin: int, count: int) -> None:
    """Refuse a directory at BEGIN of FILE that is not COUNT entries and what ends an archive of one disk."""
    file.seek(begin)
    for _ in range(count):
        file.seek(sum(_ENTRY.unpack(file.read(_ENTRY.size))), io.SEEK_CUR)
    end = file.tell()
    wanted = (0, 0, count, count, end - begin, begin)
    rest = file.read(_WIDE_END.size + _LOCATOR.size + _END.size)
    if rest.startswith(b"PK\x06\x06"):  # numbers of 64 bits, which stand before the others
        _, length, *counts = _WIDE_END.unpack_from(rest)
        _, *locator = _LOCATOR.unpack_from(rest, _WIDE_END.size)
        if (length, *counts) != (44, *wanted) or locator != [0, end, 1]:
            raise ValueError("its directory ends with other numbers than it has")
        rest = rest[_WIDE_END.size + _LOCATOR.size :]
    signature, *counts = _END.unpack_from(rest)
    fits = all(found == want or found in _WIDE for found, want in zip(counts, wanted, strict=True))
    if signature != b"PK\x05\x06" or not fits:
        raise ValueError("its directory is longer or shorter than it says")


def _check_gap(end: int, begin: int) -> None:
    """Refuse what lies between members: its directory may have lost an entry."""
    if not end <= begin <= end + _DESCRIPTOR * bool(end):
        problem = "overlap" if begin < end else "leave bytes to nobody"
        raise ValueError(f"its members {problem} before byte {max(begin, end)}")


def _member(info: zipfile.ZipInfo, file: IO[bytes]) -> Member:
    """Return what INFO of the directory, and the header in FILE, say of a member."""
    name = legible(info.orig_filename, _SHOWN)
    file.seek(info.header_offset)
    signature, length, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    found = file.read(length).decode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    if signature != _SIGNATURE or found != info.orig_filename:
        raise ValueError(f"{name} is not where the directory has it")
    if info.volume:
        raise ValueError(f"{name} is in another file of an archive in several")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if info.flag_bits & ~_FLAGS or not (deflated or info.compress_type == zipfile.ZIP_STORED):
        raise ValueError(f"{name} is encrypted, or compressed in an unknown way")
    packed, nbytes = info.compress_size, info.file_size
    if packed * _RATIO < nbytes if deflated else packed != nbytes:
        raise ValueError(f"{name} cannot have {nbytes} bytes in {packed}")
    return Member(
        info.header_offset + _LOCAL.size + length + extra, packed, nbytes, info.CRC, deflated
    )
