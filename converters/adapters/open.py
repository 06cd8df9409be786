"""Read an adapter in whichever dialect it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...errors import BadInputError
from .adapter import Adapter
from .config import CONFIG, Config, read_config
from .mlx import TENSORS, read_mlx
from .peft import read_peft

PEFT_TENSORS: Final = ("adapter_model.safetensors", "adapter_model.bin")
READERS: Final = {"mlx": read_mlx, "peft": read_peft}
FILES: Final = {"mlx": (TENSORS,), "peft": PEFT_TENSORS}


def read_adapter(path: Path) -> Adapter:
    """Read the adapter at PATH, a directory or one of several tensor files in it.

    Raises:
        BadInputError: PATH is not an adapter.
        UnsupportedError: it is of a kind that is refused; says by which field.
        MismatchError: halves of updates are missing, shapes differ, or tensors are unknown.
    """
    folder = path.parent if path.is_file() else path
    config = read_config(folder)
    dialect = dialect_of(folder, config)
    tensors = path if path.is_file() else _tensors(folder, dialect)
    return READERS[dialect](folder, tensors, config)


def dialect_of(folder: Path, config: Config) -> str:
    """Return whose CONFIG it is: ``mlx`` or ``peft``.

    Raises:
        BadInputError: it has marks of both, or of none.
    """
    marks = {
        "peft": "peft_type" in config,
        "mlx": not config.keys().isdisjoint({"fine_tune_type", "lora_parameters"}),
    }
    found = [dialect for dialect, marked in marks.items() if marked]
    if len(found) != 1:
        raise BadInputError(
            f"{folder / CONFIG}: neither mlx-lm's (lora_parameters) nor PEFT's (peft_type)"
            if not found
            else f"{folder / CONFIG}: has both mlx-lm's and PEFT's fields; keep one of the two"
        )
    return found[0]


def _tensors(folder: Path, dialect: str) -> Path:
    for file in FILES[dialect]:
        if (folder / file).is_file():
            return folder / file
    raise BadInputError(f"{folder}: {FILES[dialect][0]} is missing; copy it beside {CONFIG}")
