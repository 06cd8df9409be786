"""Results of version 0.1.0: they list no files, but what else is in them tells what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from .records import IGNORED, RECORD, below, has_tensors, read_facts

_PACKAGE: Final = "Data/com.apple.CoreML"
_CLOCK: Final = 2.0  # seconds: the coarsest clock of a file system
ADAPTER: Final = ("adapters.safetensors", "adapter_model.safetensors", "adapter_config.json")
MODEL: Final = ("weighbridge.sidecar", "config.json", "model.safetensors.index.json")
PACKAGE: Final = ("Manifest.json", f"{_PACKAGE}/model.mlmodel", f"{_PACKAGE}/weights/weight.bin")


class Old(NamedTuple):
    """A result of version 0.1.0.

    Attributes:
        last: the file that was written last.
        names: those of its files.
        tensors: hash by name of the tensors in its weights files, ``xxh3:<hex>``.
    """

    last: Path
    names: frozenset[str]
    tensors: dict[str, str]


def unlike_old(target: Path, kind: str) -> list[str]:
    """Return what at TARGET is not of a result of version 0.1.0, a line each; nothing if all is."""
    old = _old(target, kind)
    if old is None:
        return ["nothing records that Weighbridge wrote it"]
    found = [(path.relative_to(target).as_posix(), path) for path in below(target)]
    return [
        f"{name} ({why})"
        for name, path in found
        if path.name not in IGNORED and (why := _changed(name, path, old))
    ]


def _changed(name: str, path: Path, old: Old) -> str | None:
    """Say why the file NAME at PATH is not part of OLD; ``None`` if it is."""
    weights = path.suffix == ".safetensors" and has_tensors(path, old.tensors)
    if path.is_symlink() or not (name in old.names or weights):
        return "not written by Weighbridge"
    late = path.stat().st_mtime > old.last.stat().st_mtime + _CLOCK
    return "changed since it was written" if late else None


def _old(target: Path, kind: str) -> Old | None:
    """Return what TARGET is; ``None`` if it is no result of that KIND."""
    if kind == "package":
        model = target / PACKAGE[1]
        ours = model.is_file() and b"weighbridge" in model.read_bytes()  # a key of its metadata
        return Old(model, frozenset(PACKAGE), {}) if ours else None
    if kind == "golden":
        place = target / "golden.json"
        names = frozenset((place.name, "golden.safetensors"))
        return Old(place, names, {}) if place.is_file() else None
    place = target / RECORD
    facts = read_facts(place) or {}
    if kind == "adapter" and "updates" in facts:
        return Old(place, frozenset((*ADAPTER, RECORD)), {})
    if kind == "model" and isinstance(facts.get("tensors"), dict) and "updates" not in facts:
        copied = (facts.get("side_files") or {}).get("copied") or ()
        return Old(place, frozenset((*MODEL, RECORD, *copied)), facts["tensors"])
    return None
