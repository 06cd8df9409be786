"""A checkpoint in which some tensors are others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..common.dtypes import CODE
from ..values import Array
from .base import CHUNK, Checkpoint, Header


class Overlay:
    """CHECKPOINT with ARRAYS in place of its own tensors of those names.

    They may have another dtype or shape; a name that the checkpoint has not is added.
    """

    def __init__(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        self._own, self._arrays = checkpoint, arrays
        self.path, self.files, self.ignored = checkpoint.path, checkpoint.files, checkpoint.ignored
        self.metadata = checkpoint.metadata
        others = {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}
        self.headers: Mapping[str, Header] = {**checkpoint.headers, **others}

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        return self._arrays[name].copy() if name in self._arrays else self._own.read(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        if name not in self._arrays:
            yield from self._own.stream(name, start, stop)
            return
        data = np.ascontiguousarray(self._arrays[name]).reshape(-1).view(np.uint8).data
        stop = len(data) if stop is None else stop
        for at in range(start, stop, CHUNK):
            yield data[at : min(at + CHUNK, stop)]
