"""Find the tensor files of a model and open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..common.contents import JSON, TAR, ZIP, require
from .base import Checkpoint
from .formats.npz import NpzFile
from .formats.safetensors import SafetensorsFile
from .formats.torch import TorchFile
from .sharded import ShardedCheckpoint

Opener = Callable[[Path], Any]

FORMATS: Final[Mapping[str, Opener]] = {
    ".safetensors.index.json": lambda index: ShardedCheckpoint(index, SafetensorsFile),
    ".safetensors": SafetensorsFile,
    ".npz": NpzFile,
    ".bin.index.json": lambda index: ShardedCheckpoint(index, TorchFile),
    ".bin": TorchFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
}
# What some of them are when their first bytes are looked at.
INSIDE: Final[Mapping[str, frozenset[str]]] = {
    ".safetensors.index.json": frozenset({JSON}),
    ".bin.index.json": frozenset({JSON}),
    ".safetensors": frozenset({"empty"}),  # truncated
    ".npz": frozenset({ZIP}),
    **dict.fromkeys((".bin", ".pt", ".pth"), frozenset({ZIP, TAR})),
}
# In a directory the first pattern that matches decides; later ones are other copies of the model.
PRECEDENCE: Final[Sequence[tuple[str, ...]]] = (
    ("model.safetensors.index.json",),
    ("*.safetensors.index.json",),
    ("model.safetensors",),
    ("*.safetensors",),
    ("weights.npz",),
    ("*.npz",),
    ("pytorch_model.bin.index.json",),
    ("pytorch_model.bin",),
    ("*.pt", "*.pth", "*.bin"),
)
# Beside an index: transformers reads this file in its place, and mlx-lm both.
RIVALS: Final = {
    "model.safetensors.index.json": "model.safetensors",
    "pytorch_model.bin.index.json": "pytorch_model.bin",
}
# State of a training run, not a model.
STATE: Final = frozenset(
    {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin"}
    | {"rng_state.pth", "scaler.pt"}
)


# What Core ML's tools write, by suffix: what it is, and what to do.
COREML: Final = {
    ".mlpackage": "is a Core ML package, where a directory of tensors is expected; weighbridge convert"
    " coreml-to-torch brings its weights back",
    ".mlmodel": "is a Core ML model in the old format, which is not read; convert its source again with"
    " convert_to='mlprogram', or by weighbridge export coreml",
    ".mlmodelc": "is a compiled Core ML model, which is not read; name the .mlpackage it was made of",
}


def refuse_coreml(path: Path) -> None:
    """Refuse a PATH that Core ML's own tools wrote, and say what to do.

    Raises:
        BadInputError: it is one of these.
    """
    if path.suffix in COREML and path.exists():
        raise BadInputError(f"{path} {COREML[path.suffix]}")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the tensor files at PATH, a file or a directory; only headers are read.

    Raises:
        BadInputError: there is nothing to open, or no telling which of several files is meant.
    """
    refuse_coreml(path)
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise BadInputError(f"{path}: no such file or directory")
    return _open_file(path)


def _open_file(path: Path) -> Checkpoint:
    wanted = f"a tensor file (*{', *'.join(FORMATS)})"
    for suffix, opener in FORMATS.items():
        if path.name.endswith(suffix):
            require(path, wanted, INSIDE.get(suffix, ()))
            checkpoint: Checkpoint = opener(path)
            return checkpoint
    require(path, wanted)
    raise BadInputError(f"{path}: not a tensor file; known are *{', *'.join(FORMATS)}")


def _open_directory(folder: Path) -> Checkpoint:
    present = {path.name: path for path in _tensor_files(folder)}
    for patterns in PRECEDENCE:
        found = [path for path in present.values() if any(map(path.match, patterns))]
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise BadInputError(
                f"{folder}: no index says which of these files belong together: {names};"
                " add the index, or move away what does not belong to it"
            )
        if found:
            checkpoint = _open_file(found[0])
            used = {found[0], *checkpoint.files}
            checkpoint.ignored = tuple(path for path in present.values() if path not in used)
            _refuse_rival(found[0], checkpoint)
            return checkpoint
    inner = min(folder.glob("snapshots/*/"), default=None)
    known = f"known are *{', *'.join(FORMATS)}" if inner is None else f"name a snapshot: {inner}"
    raise BadInputError(f"{folder}: no tensor files in it; {known}")


def _refuse_rival(chosen: Path, checkpoint: Checkpoint) -> None:
    rival = RIVALS.get(chosen.name)
    if rival in {path.name for path in checkpoint.ignored}:
        raise BadInputError(
            f"{chosen.parent}: {rival} and the shards of {chosen.name} are two models, of which transformers reads"
            " the first and mlx-lm both; move away the one that is not meant"
        )


def refuse_others(checkpoint: Checkpoint, library: str | None) -> None:
    """Refuse files beside those of CHECKPOINT, in MLX's layout, from which LIBRARY reads its tensors too.

    mlx-lm reads all ``model*.safetensors``, whatever an index says; mlx-vlm every file where there is none.

    Raises:
        BadInputError: there is one, and nothing tells whose values the library keeps.
    """
    vlm, index = library == "mlx-vlm", checkpoint.path.name.endswith(".index.json")
    pattern = "*.safetensors" if vlm else "model*.safetensors"
    others = () if vlm and index else checkpoint.ignored
    for file in (
        it for it in others if it.match(pattern) and it.name != "consolidated.safetensors"
    ):
        twice = sorted(_open_file(file).headers.keys() & checkpoint.headers.keys())
        if twice:
            raise BadInputError(
                f"{file.parent}: {file.name} has {len(twice)} of the tensors of {checkpoint.path.name} too, such as"
                f" {twice[0]}, and {library or 'mlx-lm'} reads both; move away the file that is not meant"
            )


def _tensor_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.endswith(tuple(FORMATS))
        and path.name not in STATE
        and not path.name.startswith(".")
        and path.is_file()
    )
