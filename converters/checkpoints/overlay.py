"""A checkpoint in which some tensors are others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..common.dtypes import CODE
from ..values import Array
from .base import Checkpoint, Header
from .derived import Derived
from .formats.ranges import chunks


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
