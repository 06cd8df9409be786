"""The streaming writer: header first, then tensors one by one, hashed on their way."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

import numpy as np
import xxhash

from ..common.dtypes import NUMPY
from ..common.system import reserve, write_all, writing
from ..values import Array
from .base import CHUNK, Header
from .formats.ranges import BUFFERS, chunks
from .formats.safetensors import Place
from .journal import Journal
from .shards import INDEX, arrange, fingerprint, index_text
from .workers import Workers

Data = Array | Iterable[memoryview]

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Writer:
    """Write a safetensors checkpoint, in shards where it is large, and resume an interrupted one.

    Every byte but those of the tensors follows from the layout, so a resumed run ends with the
    same files as one that was not interrupted.

    Attributes:
        finished: tensors that an interrupted run with the same layout left whole on disk, known
            by hashing them again; writing them once more is not needed.
    """

    def __init__(  # what a checkpoint consists of
        self,
        folder: Path,
        layout: Mapping[str, Header],
        *,
        metadata: Mapping[str, str] = NOTHING,
        max_shard_size: int = 5_000_000_000,
        stem: str = "model",
    ) -> None:
        self.folder = folder
        self._index = folder / INDEX.format(stem=stem)
        self._shards = arrange(layout, metadata, max_shard_size, stem)
        shard_of = {name: shard for shard in self._shards for name in shard.places}
        self._shard_of = {name: shard_of[name] for name in layout}
        self._journal = Journal(folder / f".{stem}.journal", fingerprint(self._shards))
        with writing(folder):
            self._hashes = self._verified(self._journal.load())
            self.finished = frozenset(self._hashes)
            self._journal.start(self._hashes)
            self._prepare()

    def write(self, name: str, data: Data) -> str:
        """Write tensor NAME, an array or its bytes in pieces; return its hash, ``xxh3:<hex>``.

        Raises:
            WeighbridgeError: the disk is full.
            ValueError: DATA is not what the layout says.
        """
        if name in self._hashes:
            raise ValueError(f"{name} is written already")
        shard = self._shard_of[name]
        place = shard.places[name]
        pieces = _pieces(name, data, place.header) if isinstance(data, np.ndarray) else data
        path = self.folder / shard.file
        with writing(path):
            file = path.open("r+b", buffering=0)
        with file:
            value = _copy(name, pieces, file, place, path)
        with writing(path):
            self._journal.add(name, value)
        self._hashes[name] = value
        return value

    def close(self) -> dict[str, str]:
        """Finish the files; return name -> hash of every tensor, in the order of the layout.

        Raises:
            ValueError: tensors were not written.
        """
        if missing := sorted(set(self._shard_of) - set(self._hashes)):
            raise ValueError(f"not written: {', '.join(missing)}")
        if len(self._shards) > 1:
            with writing(self.folder):
                self._index.write_text(index_text(self._shards), encoding="utf-8")
        self._journal.remove()
        return {name: self._hashes[name] for name in self._shard_of}

    def _verified(self, hashes: Mapping[str, str]) -> dict[str, str]:
        """Return those of HASHES that the bytes on disk still have."""
        found: dict[str, str | None] = {}
        there = [name for name in hashes if name in self._shard_of]
        Workers().each(there, lambda name: found.update({name: self._hash(name)}))
        return {name: hashes[name] for name in there if found[name] == hashes[name]}

    def _hash(self, name: str) -> str | None:
        shard = self._shard_of[name]
        try:
            with (self.folder / shard.file).open("rb", buffering=0) as file:
                return _digest_of(file, shard.places[name])
        except FileNotFoundError:
            return None

    def _prepare(self) -> None:
        """Give every file its header and its size, so that a full disk is found before bytes move."""
        self._check_space()
        for shard in self._shards:
            path = self.folder / shard.file
            path.touch()
            with path.open("r+b", buffering=0) as file:
                reserve(file.fileno(), shard.size)  # also twice as fast to fill, measured on ext4
                file.truncate(shard.size)
                write_all(file, memoryview(shard.header))

    def _check_space(self) -> None:
        paths = [self.folder / shard.file for shard in self._shards]
        there = sum(path.stat().st_blocks * 512 for path in paths if path.exists())
        needed = sum(shard.size for shard in self._shards) - there
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free")


def _pieces(name: str, array: Array, header: Header) -> Iterator[memoryview]:
    """Return the bytes of ARRAY, which must be what HEADER says, at most ``CHUNK`` at a time."""
    if (array.dtype, array.shape) != (NUMPY[header.dtype], header.shape):
        raise ValueError(f"{name}: expected {header}, found {array.dtype}{list(array.shape)}")
    return chunks(array)


def _copy(
    name: str, pieces: Iterable[memoryview], file: IO[bytes], place: Place, path: Path
) -> str:
    digest = xxhash.xxh3_64()
    position = file.seek(place.begin)
    for piece in pieces:
        position += piece.nbytes
        if position > place.end:
            break
        digest.update(piece)
        with writing(path):  # not around the loop: PIECES may fail to be read
            write_all(file, piece)
    if position != place.end:
        raise ValueError(f"{name}: {place.header} takes {place.header.nbytes} bytes, not what came")
    return f"xxh3:{digest.hexdigest()}"


def _digest_of(file: IO[bytes], place: Place) -> str:
    """Return the hash of what FILE, unbuffered, has at PLACE; of less if it ends before."""
    digest = xxhash.xxh3_64()
    left = place.end - file.seek(place.begin)
    with BUFFERS.lend() as buffer:
        while left > 0 and (count := file.readinto(buffer[: min(CHUNK, left)])):  # type: ignore[attr-defined]
            digest.update(buffer[:count])
            left -= count
    return f"xxh3:{digest.hexdigest()}"
