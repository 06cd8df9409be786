"""What tells one adapter from another: a hash of its numbers, wherever and however they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from ..common.dtypes import CODE
from ..values import Array
from .adapter import Adapter


def digest(adapter: Adapter) -> str:
    """Return ``xxh3:<hex>`` of the updates and ``modules_to_save`` tensors of ADAPTER, as it was read.

    Names, scales, dtypes, shapes and numbers count; the folder, the container and the order of the
    tensors do not.
    """
    total = xxhash.xxh3_128()
    for what, array in _parts(adapter):
        total.update(f"{what} {CODE[array.dtype]}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"xxh3:{total.hexdigest()}"


def _parts(adapter: Adapter) -> Iterator[tuple[Any, Array]]:
    """Yield every array of ADAPTER in the order of the names, and what it is."""
    for name, update in sorted(adapter.updates.items()):
        yield ("a", name, float(update.scale)), update.a
        yield ("b", name), update.b
        if update.magnitude is not None:
            yield ("m", name), update.magnitude
    for name, array in sorted(adapter.saved.items()):
        yield ("whole", name), array
