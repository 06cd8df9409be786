"""A checkpoint in several files: an index says which tensor lies where, and is obeyed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath, PureWindowsPath

from ...errors import BadInputError, MismatchError
from ..values import Array
from .base import Checkpoint, Header


class ShardedCheckpoint:
    """The tensors that an index names, shard by shard."""

    def __init__(self, index: Path, open_shard: Callable[[Path], Checkpoint]) -> None:
        self.path = index
        self.ignored: tuple[Path, ...] = ()
        homes = read_index(index)
        self.files: tuple[Path, ...] = tuple(
            index.parent / file for file in sorted(set(homes.values()))
        )
        shards = {path.name: open_shard(path) for path in self.files}
        _check(index, homes, shards)
        self._homes = {
            name: shard
            for file, shard in shards.items()
            for name in shard.headers
            if homes.get(name) == file
        }
        self.headers: Mapping[str, Header] = {n: s.headers[n] for n, s in self._homes.items()}
        self.metadata: Mapping[str, str] = {
            key: text for shard in shards.values() for key, text in shard.metadata.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._homes[name].read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        return self._homes[name].stream(name, start, stop)


def read_index(index: Path) -> dict[str, str]:
    """Return ``weight_map`` of the index file: tensor name -> file name.

    Raises:
        BadInputError: the file is not such an index.
        MismatchError: it names files outside its folder or files that are missing.
    """
    try:
        homes = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError(
            f"{index}: not an index with a weight_map ({error}); download or save it again"
        ) from error
    if not isinstance(homes, dict) or not all(isinstance(file, str) for file in homes.values()):
        raise BadInputError(f"{index}: weight_map does not map names to files")
    problems = [_problem(index, file) for file in sorted(set(homes.values()))]
    if any(problems):
        raise MismatchError(
            f"{index} names files that cannot be used", list(filter(None, problems))
        )
    return homes


def _problem(index: Path, file: str) -> str:
    """Say what is wrong with FILE of INDEX; links are followed, as the hub's cache consists of them."""
    if file in ("", ".", "..") or PurePath(file).name != file or PureWindowsPath(file).name != file:
        return f"{file!r} lies outside the folder of the index"
    if not (index.parent / file).is_file():
        return f"{file} is missing; download it again"
    return ""


def _check(index: Path, homes: Mapping[str, str], shards: Mapping[str, Checkpoint]) -> None:
    """Raise MismatchError unless index and shards name the same tensors."""
    stored = {name for shard in shards.values() for name in shard.headers}
    problems = [
        f"{name} is not in {file}, where the index has it"
        for name, file in sorted(homes.items())
        if name not in shards[file].headers
    ]
    problems += [
        f"{name} is in a shard, but not in the index" for name in sorted(stored - set(homes))
    ]
    if problems:
        raise MismatchError(f"{index} does not fit its shards", problems)
