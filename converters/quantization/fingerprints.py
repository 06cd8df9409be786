"""What an adapter records of its base: a hash of each weight as it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import xxhash

from ..checkpoints import Checkpoint, Header
from ..common.dtypes import CODE
from ..values import Array
from .blocks import Blocks
from .view import Dequantized, stored_as

CODES: Final = "weight"  # the part that says where on its grid a weight lies


def fingerprints(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """Return ``xxh3:<hex>`` of the tensors NAMES that CHECKPOINT has, by name.

    Dtype, shape and bytes count, the order and the files of the tensors do not. Of a quantized
    weight codes, scales and biases count, whether CHECKPOINT is the stored one or its dense view.
    """
    raw = checkpoint.raw if isinstance(checkpoint, Dequantized) else checkpoint
    return {name: _fingerprint(raw, name) for name in names if name in raw.headers}


def grid_fingerprints(checkpoint: Dequantized, names: Iterable[str]) -> dict[str, str]:
    """Return a hash of where the values of the quantized weights NAMES can lie, whichever codes they have."""
    raw, found = checkpoint.raw, {}
    for name in names:
        stored = checkpoint.part_names(name).items()
        parts = {part: raw.read(full) for part, full in stored if part != CODES}
        found[name] = grid_fingerprint(Blocks(parts, checkpoint.schemes[name]))
    return found


def grid_fingerprint(blocks: Blocks) -> str:
    """Return what :func:`grid_fingerprints` gives for a weight of which BLOCKS has all but its codes, or all."""
    digest = xxhash.xxh3_64(str(blocks.scheme).encode())
    for part, array in sorted(blocks.parts.items()):
        if part != CODES:
            _add(digest, part, array)
    return f"xxh3:{digest.hexdigest()}"


def _fingerprint(raw: Checkpoint, name: str) -> str:
    digest = xxhash.xxh3_64()
    for part, full in sorted(stored_as(raw, name).items()):
        digest.update(f"{part} {raw.headers[full]}".encode())
        for piece in raw.stream(full):
            digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"


def fingerprint(array: Array) -> str:
    """Return what :func:`fingerprints` gives for a dense weight that is ARRAY."""
    digest = xxhash.xxh3_64()
    _add(digest, "weight", array)
    return f"xxh3:{digest.hexdigest()}"


def _add(digest: xxhash.xxh3_64, part: str, array: Array) -> None:
    array = np.ascontiguousarray(array)
    digest.update(f"{part} {Header(CODE[array.dtype], array.shape)}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)


def compare(recorded: Mapping[str, str], checkpoint: Checkpoint) -> dict[str, str]:
    """Return how the weights whose hashes are RECORDED differ from those of CHECKPOINT, by name."""
    found = fingerprints(checkpoint, recorded)
    return {
        name: f"recorded {wanted}, found {found[name]}" if name in found else "missing"
        for name, wanted in sorted(recorded.items())
        if found.get(name) != wanted
    }
