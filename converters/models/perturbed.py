"""A model whose weights are moved by as much as float32 rounds: how far do its outputs go?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xxhash

from ..checkpoints import Checkpoint, Header
from ..checkpoints.derived import Derived
from ..common.dtypes import FLOATS
from ..values import Array
from . import Model

STEP = 2.0**-24  # half the distance from 1 to the next float32


class Perturbed(Derived):
    """CHECKPOINT in float32, every number moved by up to a relative ``STEP``, always the same way."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        headers = {
            name: Header("F32", head.shape) if head.dtype in FLOATS else head
            for name, head in checkpoint.headers.items()
        }
        super().__init__(checkpoint, headers)

    def read(self, name: str) -> Array:
        """Return tensor NAME, moved."""
        array = self._own.read(name)
        if self._own.headers[name].dtype not in FLOATS:
            return array
        random = np.random.default_rng(xxhash.xxh3_64_intdigest(name.encode()))
        moved = array.astype(np.float64) * (1 + STEP * random.uniform(-1, 1, array.shape))
        return moved.astype(np.float32)


def perturbed(model: Model) -> Model:
    """Return MODEL with every weight moved by as much as float32 rounds."""
    return replace(model, tensors=Perturbed(model.checkpoint))
