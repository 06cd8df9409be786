"""A checkpoint in several files: an index says which tensor lies where, and is obeyed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PureWindowsPath
from typing import Final

from ...errors import BadInputError, MismatchError, shortened
from ..documents import INDEX, read_object
from ..values import Array
from .base import Checkpoint, Header, fill

LONGEST_NAME: Final = 255  # bytes of a file's name, on every common file system


class ShardedCheckpoint:
    """The tensors that an index names, shard by shard."""

    def __init__(self, index: Path, open_shard: Callable[[Path], Checkpoint]) -> None:
        self.path = index
        self.ignored: tuple[Path, ...] = ()
        shard_of = read_index(index)
        self.files: tuple[Path, ...] = tuple(
            index.parent / file for file in sorted(set(shard_of.values()))
        )
        shards = _open_all(index, self.files, open_shard)
        _check(index, shard_of, shards)
        self._shard_of = {
            name: shard
            for file, shard in shards.items()
            for name in shard.headers
            if shard_of.get(name) == file
        }
        self.headers: Mapping[str, Header] = {n: s.headers[n] for n, s in self._shard_of.items()}
        self.metadata: Mapping[str, str] = {
            key: text for shard in shards.values() for key, text in shard.metadata.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._shard_of[name].read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        return self._shard_of[name].stream(name, start, stop)

    def fill(self, name: str, start: int, data: memoryview) -> None:
        """Fill DATA with the bytes of tensor NAME from START on."""
        fill(self._shard_of[name], name, start, data)


def read_index(index: Path) -> dict[str, str]:
    """Return ``weight_map`` of the index file: tensor name -> file name.

    Raises:
        BadInputError: the file is not such an index.
        MismatchError: it names a tensor twice, files outside its folder or files that are missing.
    """
    shard_of = read_object(index, INDEX).get("weight_map")
    if not isinstance(shard_of, dict) or not all(
        isinstance(file, str) for file in shard_of.values()
    ):
        what = "it has no weight_map from names to files"
        raise BadInputError(f"{index}: {what}; {INDEX.todo}")
    problems = [
        problem for file in sorted(set(shard_of.values())) for problem in _flaws(index, file)
    ]
    if problems:
        raise MismatchError(f"{index} cannot be obeyed", problems)
    return shard_of


def _flaws(index: Path, file: str) -> Iterator[str]:
    """Yield what is wrong with FILE of INDEX."""
    if file in ("", ".", "..") or PurePath(file).name != file or PureWindowsPath(file).name != file:
        yield f"{file!r} lies outside the folder of the index"
        return
    place = index.parent / file
    if len(os.fsencode(file)) > LONGEST_NAME or "\0" in file:
        yield f"{shortened(file, 80)!r} cannot be the name of a file"
    elif not place.is_file():
        yield f"{file} is missing; download it again"
    elif not _stays(index.parent, place):
        yield f"{file} is a link out of the folder, to {place.resolve()}; put the file itself there"


def _stays(folder: Path, place: Path) -> bool:
    """Whether PLACE, links followed, lies in FOLDER or in the ``blobs`` of the hub's cache."""
    real, root = place.resolve().parent, folder.resolve()
    return real.is_relative_to(root) or any(real == above / "blobs" for above in root.parents)


def _open_all(
    index: Path, files: Iterable[Path], open_shard: Callable[[Path], Checkpoint]
) -> dict[str, Checkpoint]:
    """Open all FILES; those that cannot be opened are reported together."""
    shards: dict[str, Checkpoint] = {}
    errors: list[BadInputError] = []
    for path in files:
        try:
            shards[path.name] = open_shard(path)
        except BadInputError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise MismatchError(f"{index} has shards that cannot be read", list(map(str, errors)))
    return shards


def _check(index: Path, shard_of: Mapping[str, str], shards: Mapping[str, Checkpoint]) -> None:
    """Raise MismatchError unless index and shards name the same tensors, each in one place."""
    stored: dict[str, list[str]] = {}
    for file, shard in shards.items():
        for name in shard.headers:
            stored.setdefault(name, []).append(file)
    absent = [(name, file) for name, file in shard_of.items() if file not in stored.get(name, ())]
    twice = [(name, files) for name, files in stored.items() if len(files) > 1]
    problems = [f"{name} is not in {file}, where the index has it" for name, file in sorted(absent)]
    problems += [
        f"{name} is stored twice, in {' and in '.join(files)}; nothing tells which one is meant"
        for name, files in sorted(twice)
    ]
    problems += [
        f"{name} is in a shard, but not in the index"
        for name in sorted(stored.keys() - shard_of.keys())
    ]
    if problems:
        raise MismatchError(f"{index} does not fit its shards", problems)
