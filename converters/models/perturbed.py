"""A model whose weights are moved by as much as float32 rounds: how far do its outputs go?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import xxhash

from ..checkpoints import CHUNK, Checkpoint, Header
from ..common.dtypes import FLOATS
from ..values import Array
from . import Model

STEP = 2.0**-24  # half the distance from 1 to the next float32


class Shaken:
    """CHECKPOINT in float32, every number moved by up to a relative ``STEP``, always the same way."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._own = checkpoint
        self.path, self.files, self.ignored = checkpoint.path, checkpoint.files, checkpoint.ignored
        self.metadata = checkpoint.metadata
        self.headers: Mapping[str, Header] = {
            name: Header("F32", head.shape) if head.dtype in FLOATS else head
            for name, head in checkpoint.headers.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME, moved."""
        array = self._own.read(name)
        if self._own.headers[name].dtype not in FLOATS:
            return array
        random = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode()))
        moved = array.astype(np.float64) * (1 + STEP * random.uniform(-1, 1, array.shape))
        return moved.astype(np.float32)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        data = np.ascontiguousarray(self.read(name)).reshape(-1).view(np.uint8).data
        stop = len(data) if stop is None else stop
        for at in range(start, stop, CHUNK):
            yield data[at : min(at + CHUNK, stop)]


def shaken(model: Model) -> Model:
    """Return MODEL with every weight moved by as much as float32 rounds."""
    return replace(model, tensors=Shaken(model.checkpoint))
