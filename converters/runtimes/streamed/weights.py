"""Where the values of one weight come from: rows of a file, or what a library makes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from ...checkpoints.base import Checkpoint
from ...common.arrays import to_torch

READ: Final = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
READ_TOO: Final = {"F64": torch.float64, "I64": torch.int64, "I32": torch.int32}
TORCH: Final = READ | READ_TOO
Rows = Callable[[int, int], torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Weight:
    """A weight of a module, somewhere on disk.

    Attributes:
        name: of the weight.
        shape: its shape.
        rows: reads rows START to STOP along the first axis, in any dtype.
        whole: reads all of it.
        apart: whether some rows are read without the others.
        plain: the tensor of the checkpoint that it is as it lies; ``None`` where there is none.
    """

    name: str
    shape: tuple[int, ...]
    rows: Rows
    whole: Callable[[], torch.Tensor]
    apart: bool = False
    plain: str | None = None


def stored(name: str, checkpoint: Checkpoint, tensor: str) -> Weight:
    """Return weight NAME, which is TENSOR of CHECKPOINT as it lies."""
    header = checkpoint.headers[tensor]
    shape, dtype = header.shape, TORCH.get(header.dtype)

    def whole() -> torch.Tensor:
        return rows(0, shape[0]) if shape and dtype else to_torch(checkpoint.read(tensor))

    def rows(start: int, stop: int) -> torch.Tensor:
        if dtype is None:
            return to_torch(checkpoint.read(tensor)[start:stop])
        width = header.nbytes // max(shape[0], 1)
        data, at = np.empty((stop - start) * width, np.uint8), 0
        for view in checkpoint.stream(tensor, start * width, stop * width):
            data[at : at + view.nbytes] = view
            at += view.nbytes
        flat = torch.frombuffer(data, dtype=dtype) if data.size else torch.empty(0, dtype=dtype)
        return flat.view(stop - start, *shape[1:])

    return Weight(name, shape, rows, whole, apart=bool(shape) and dtype is not None, plain=tensor)


def made(name: str, shape: tuple[int, ...], whole: Callable[[], torch.Tensor]) -> Weight:
    """Return weight NAME of SHAPE, which WHOLE makes each time."""
    return Weight(name, shape, lambda start, stop: whole()[start:stop], whole)


def changed(weight: Weight, change: Change) -> Weight:
    """Return WEIGHT with CHANGE applied to its elements, each by itself."""
    return Weight(
        weight.name,
        weight.shape,
        lambda start, stop: change(weight.rows(start, stop)),
        lambda: change(weight.whole()),
        weight.apart,
    )


def remade(weight: Weight, change: Change) -> Weight:
    """Return WEIGHT with CHANGE applied to all of it."""
    return made(weight.name, weight.shape, lambda: change(weight.whole()))


def nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of an array.

    >>> nbytes((2, 3), torch.float64)
    48
    """
    return math.prod(shape) * dtype.itemsize


def nothing(name: str, shape: tuple[int, ...]) -> Weight:
    """Return weight NAME, of which there is none: NaN, so that an output that needs it shows it."""
    return made(name, shape, lambda: torch.full(shape, math.nan))
