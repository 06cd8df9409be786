"""What an adapter records of its base: a hash of each weight as it is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import xxhash

from ..checkpoints import Checkpoint, Header
from ..common.dtypes import CODE
from ..values import Array
from .view import Dequantized, stored_as


def fingerprints(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """Return ``xxh3:<hex>`` of the tensors NAMES that CHECKPOINT has, by name.

    Dtype, shape and bytes count, the order and the files of the tensors do not. Of a quantized
    weight codes, scales and biases count, whether CHECKPOINT is the stored one or its dense view.
    """
    raw = checkpoint.raw if isinstance(checkpoint, Dequantized) else checkpoint
    return {name: _fingerprint(raw, name) for name in names if name in raw.headers}


def grid_fingerprints(checkpoint: Dequantized, names: Iterable[str]) -> dict[str, str]:
    """Return a hash of where the values of the quantized weights NAMES can lie, whichever codes they have."""
    return {
        name: _fingerprint(checkpoint.raw, name, str(checkpoint.schemes[name]), {"weight"})
        for name in names
    }


def _fingerprint(raw: Checkpoint, name: str, scheme: str = "", leave: Collection[str] = ()) -> str:
    digest = xxhash.xxh3_64(scheme.encode())
    parts = {part: full for part, full in stored_as(raw, name).items() if part not in leave}
    for part, full in sorted(parts.items()):
        digest.update(f"{part} {raw.headers[full]}".encode())
        for piece in raw.stream(full):
            digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"


def fingerprint(array: Array) -> str:
    """Return what :func:`fingerprints` gives for a dense weight that is ARRAY."""
    array = np.ascontiguousarray(array)
    digest = xxhash.xxh3_64(f"weight {Header(CODE[array.dtype], array.shape)}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    return f"xxh3:{digest.hexdigest()}"


def compare(recorded: Mapping[str, str], checkpoint: Checkpoint) -> dict[str, str]:
    """Return how the weights whose hashes are RECORDED differ from those of CHECKPOINT, by name."""
    found = fingerprints(checkpoint, recorded)
    return {
        name: f"recorded {wanted}, found {found[name]}" if name in found else "missing"
        for name, wanted in sorted(recorded.items())
        if found.get(name) != wanted
    }
