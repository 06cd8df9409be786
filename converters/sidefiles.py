"""A model is more than weights: what travels beside them, byte for byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInputError
from .documents import read_json

WEIGHTS = frozenset(
    (
        ".bin",
        ".ckpt",
        ".gguf",
        ".h5",
        ".msgpack",
        ".npz",
        ".onnx",
        ".ot",
        ".pt",
        ".pth",
        ".safetensors",
        ".tflite",
    )
)
SKIPPED_FOLDERS = frozenset((".cache", ".git", "__pycache__", "checkpoints"))
SIDECAR = (
    "weighbridge.sidecar"  # safetensors: tensors that an export to PyTorch may need as they were
)
SKIPPED_FILES = frozenset(("weighbridge.json", SIDECAR))

# How images and sound become numbers; transformers writes the first, its older versions the others.
PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


class SideFiles(NamedTuple):
    """What a conversion did with the files beside the weights; paths relative to the model."""

    copied: tuple[str, ...]
    left_out: tuple[str, ...]


def module_folders(source: Path) -> frozenset[str]:
    """Return folders of a sentence-transformers directory whose weights belong to its head."""
    modules = source / "modules.json"
    if not modules.is_file():
        return frozenset()
    rows = read_json(modules)
    listed = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not listed or not all(isinstance(row.get("path"), str | None) for row in rows):
        raise BadInputError(f"{modules}: not a list of modules; download it again")
    return frozenset(path for row in rows if (path := row.get("path")))


def walk(source: Path) -> Iterator[Path]:
    """Yield the files below SOURCE in sorted order, caches left aside."""
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        if path.is_file() and not SKIPPED_FOLDERS.intersection(parts[:-1]):
            yield path


def leads_away(path: Path, source: Path) -> bool:
    """Say whether PATH is a link out of SOURCE; links into a hub cache's blobs are its own files."""
    if not path.is_symlink():
        return False
    real = Path(os.path.realpath(path))  # of a loop of links too
    return not real.is_relative_to(os.path.realpath(source)) and real.parent.name != "blobs"


def is_weights(path: Path) -> bool:
    """Say whether PATH holds tensors, or an index of them."""
    return path.suffix in WEIGHTS or path.name.endswith(".index.json")


def copy_side_files(source: Path, target: Path, leave: Collection[str] = ()) -> SideFiles:
    """Copy tokenizer, configuration, pooling, card and licence of SOURCE to TARGET.

    Weights are left to the map, but for those of a sentence-transformers head (``2_Dense``), which
    have the same layout everywhere. What LEAVE names stays behind.
    """
    heads = module_folders(source)
    copied, left_out = [], []
    for path in walk(source):
        relative = path.relative_to(source)
        if (
            relative.name in SKIPPED_FILES
            or relative.as_posix() in leave
            or (is_weights(path) and len(relative.parts) == 1)
        ):
            continue
        weights = is_weights(path) and relative.parts[0] not in heads
        if weights or leads_away(path, source):
            left_out.append(relative.as_posix())
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / relative)
        copied.append(relative.as_posix())
    return SideFiles(tuple(copied), tuple(left_out))
