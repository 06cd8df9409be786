"""Which verb of ``weighbridge convert`` takes a thing that was given to another one."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ...errors import BadInputError, WeighbridgeError
from ..adapters import read_adapter
from ..checkpoints import open_checkpoint
from ..common.contents import GGUF, kind_of
from ..common.hints import command, unused
from ..models.config_fields import FILE as CONFIG
from ..models.program_files import program_in
from ..models.specs import ADAPTER_FILES, framework_in


class Kind(NamedTuple):
    """A kind of source.

    Attributes:
        word: what a person calls one.
        verbs: of ``weighbridge convert``, that take it.
        beside: what else they have to be given.
    """

    word: str
    verbs: tuple[str, ...]
    beside: tuple[str, ...] = ()


LIKE: Final = ("--like", "MODEL")
KINDS: Final = {
    "torch": Kind("a PyTorch model", ("torch-to-mlx",)),
    "mlx": Kind("an MLX model", ("mlx-to-torch",)),
    "mlx adapter": Kind("an adapter trained with MLX", ("mlx-to-peft",), ("--base", "BASE")),
    "torch adapter": Kind("a PEFT adapter", ("peft-to-mlx",), ("--base", "BASE")),
    GGUF: Kind(GGUF, ("gguf-to-mlx", "gguf-to-torch"), LIKE),
    ".mlpackage": Kind("a Core ML package", ("coreml-to-mlx", "coreml-to-torch"), LIKE),
    ".onnx": Kind("an ONNX file", ("onnx-to-mlx", "onnx-to-torch"), LIKE),
    ".aimodel": Kind("a Core AI asset", ("coreai-to-mlx", "coreai-to-torch"), LIKE),
}
SUFFIXES: Final = (".gguf", ".mlpackage", ".onnx", ".aimodel", ".safetensors")


def require_taken(path: Path, *verbs: str) -> None:
    """Refuse what is at PATH if other verbs than VERBS, or those that begin like one of them, convert it.

    Raises:
        BadInputError: says what it is, and the command that converts it.
    """
    try:
        kind = KINDS.get(_kind(path))
    except (WeighbridgeError, OSError):  # the verb itself says what is wrong with it
        return
    if kind is None or any(it.startswith(verbs) for it in kind.verbs):
        return
    name = path.stem if path.suffix in SUFFIXES else path
    right = (
        command("convert", it, path, unused(name, f"-{it.rpartition('-')[2]}"), *kind.beside)
        for it in kind.verbs
    )
    raise BadInputError(f"{path} is {kind.word}; what converts it is {' or '.join(right)}")


def _kind(path: Path) -> str:
    """Return of which of ``KINDS`` PATH is; empty where of none."""
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        return ""
    if path.is_file() and kind_of(path) == GGUF:
        return GGUF
    if program := path if path.suffix == ".mlpackage" else program_in(path):
        return program.suffix
    adapter = any((folder / name).exists() for name in ADAPTER_FILES)
    if not adapter and (folder / CONFIG).is_file():
        return framework_in(open_checkpoint(path))
    return f"{read_adapter(path).framework} adapter" if adapter and path.is_dir() else ""
