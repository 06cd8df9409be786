"""Core AI assets with other weights than those they were exported with."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.converters.values import Array


def with_weights(asset: Path, target: Path, weights: Mapping[str, Array]) -> Path:
    """Write ASSET at TARGET with WEIGHTS in the place of its own, and its hash put right."""
    shutil.copytree(asset, target)
    before, content = Asset(asset), (asset / "main.mlirb").read_bytes()
    changed = bytearray(content)
    for name, array in weights.items():
        own = before.read(name).tobytes()
        assert content.count(own) == 1, name
        at = content.index(own)
        changed[at : at + len(own)] = array.tobytes()
    (target / "main.mlirb").write_bytes(changed)
    (target / "main.hash").write_bytes(hashlib.sha256(changed).digest())
    return target


def exchanged(asset: Path, target: Path, one: str, other: str) -> Path:
    """Write ASSET at TARGET with its weights ONE and OTHER in each other's place."""
    read = Asset(asset).read
    return with_weights(asset, target, {one: read(other), other: read(one)})
