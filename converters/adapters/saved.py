"""``modules_to_save`` tensors of an adapter: which of them differ from the base's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..checkpoints import Checkpoint
from ..values import Array


def differing(saved: Mapping[str, Array], base: Checkpoint) -> dict[str, Array]:
    """Return those of SAVED that differ from the tensors of BASE, which go by the same names.

    PEFT writes a copy of every embedding that has an update beside it (``save_embedding_layers``);
    the copies need not travel. One that was rounded to another dtype on the way counts as a copy.
    """
    return {name: array for name, array in saved.items() if not _copy(array, base, name)}


def _copy(array: Array, base: Checkpoint, name: str) -> bool:
    """Say whether ARRAY is the tensor NAME of BASE, in ARRAY's own dtype.

    A wider one that would merely round to it was trained.
    """
    if name not in base.headers or base.headers[name].shape != array.shape:
        return False
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array, base.read(name).astype(array.dtype)))
