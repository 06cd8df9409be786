"""Checkpoints made from another as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..common.dtypes import CODE, NUMPY
from ..values import Array
from .base import Checkpoint, Header
from .formats.ranges import chunks, gather

Source = tuple[Checkpoint, str]  # where a tensor lies, and its name there


class Derived:
    """CHECKPOINT under other HEADERS; a subclass says in ``read`` or ``stream`` what they stand for.

    Attributes:
        path: of CHECKPOINT, as are ``files``, ``ignored`` and ``metadata``.
        headers: of the tensors that are read here.
    """

    path: Path
    headers: Mapping[str, Header]

    def __init__(self, checkpoint: Checkpoint, headers: Mapping[str, Header]) -> None:
        self._own = checkpoint
        self.path, self.files, self.ignored = checkpoint.path, checkpoint.files, checkpoint.ignored
        self.metadata, self.headers = checkpoint.metadata, headers

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._own.read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        yield from chunks(self.read(name), start, stop)

    def _gathered(self, name: str) -> Array:
        """Return tensor NAME, put together from what ``stream`` yields."""
        head = self.headers[name]
        return gather(self.stream(name), head.nbytes).view(NUMPY[head.dtype]).reshape(head.shape)


class Overlay(Derived):
    """CHECKPOINT with ARRAYS in place of its own tensors of those names.

    They may have another dtype or shape; a name that the checkpoint has not is added.
    """

    def __init__(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        others = {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}
        super().__init__(checkpoint, {**checkpoint.headers, **others})
        self._arrays = arrays

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._arrays[name].copy() if name in self._arrays else self._own.read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        if name in self._arrays:
            yield from chunks(self._arrays[name], start, stop)
        else:
            yield from self._own.stream(name, start, stop)


class Joined(Derived):
    """CHECKPOINT, and beside its tensors, or in place of some, those of OTHERS."""

    def __init__(self, checkpoint: Checkpoint, others: Mapping[str, Source]) -> None:
        headers = {name: source.headers[there] for name, (source, there) in others.items()}
        super().__init__(checkpoint, {**checkpoint.headers, **headers})
        self._others = others

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        source, there = self._others.get(name, (self._own, name))
        return source.read(there)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        source, there = self._others.get(name, (self._own, name))
        yield from source.stream(there, start, stop)
