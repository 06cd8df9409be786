"""A GGUF file with every number in float32: what it computes where nothing is rounded on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from ...checkpoints import require_space
from ...common.system import writing
from ..file import GgufFile
from ..plan import Made, metadata
from ..types import is_known
from ..write import header, offsets

PIECE: Final = 1 << 20  # numbers at a time
WIDE: Final = "F32"


def write_widened(file: GgufFile, path: Path) -> None:
    """Write FILE at PATH with its tensors in float32, its metadata as they are.

    Raises:
        WeighbridgeError: there is too little room, or the disk is full.
    """
    stored = {
        name: it._replace(type=WIDE) if is_known(it.type) else it
        for name, it in file.tensors.items()
    }
    made = {name: Made(it) for name, it in stored.items()}
    begin = header(file, made, metadata(file, WIDE))
    places, size = offsets(made, file.alignment, len(begin))
    require_space(path, size)
    with writing(path), path.open("wb") as out:
        out.truncate(size)
        out.write(begin)
        for name, place in places.items():
            out.seek(place)
            _write_tensor(file, name, out)


def _write_tensor(file: GgufFile, name: str, out: object) -> None:
    """Write the numbers of tensor NAME of FILE."""
    shape = file.tensors[name].shape
    rows, step = int(np.prod(shape[:-1])), max(1, PIECE // shape[-1])
    for start in range(0, rows, step):
        piece = file.rows(name, slice(start, min(start + step, rows)))
        out.write(np.ascontiguousarray(piece, "<f4").data)  # type: ignore[attr-defined]
