"""Compressed constants that are rows of one tensor, or several tensors side by side: what they may be made of.

No number is where it was, so the nearest tensors are taken; how near they have to be is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.values import Array

if TYPE_CHECKING:
    from .source import SourceTensors

TABLE: Final = 2  # axes
FEW: Final = 8  # rows of a table of which one may be for all tokens
STACKED: Final = 3  # axes of a tensor that has the matrices of all experts


def rows(shape: tuple[int, ...], source: SourceTensors) -> Iterator[Any]:
    """Yield the runs of rows that a constant of SHAPE may be, such as one gate of a layer, or one row again and again.

    A package of one length has of a table of positions the first rows, and of types of tokens one for each.
    """
    while len(shape) > TABLE and shape[0] == 1:
        shape = shape[1:]
    count = shape[0] if shape else 0
    tables = {name: whole for name, whole in source.shapes.items() if whole[1:] == shape[1:]}
    for name, whole in tables.items() if count else ():
        table = {"key": name}
        if len(whole) and whole[0] > count:
            starts = range(0, whole[0] - count + 1, count) if not whole[0] % count else (0,)
            yield from (["rows", table, float(start), float(start + count)] for start in starts)
        if len(whole) == TABLE and whole[0] <= FEW and count > 1:
            for row in range(whole[0]):
                yield ["repeat", ["rows", table, float(row), float(row + 1)], float(count)]


def joined(array: Array, source: SourceTensors) -> Any:
    """Return the tensors nearest to the parts of ARRAY, side by side along an axis; ``None`` if there are none."""
    for axis in range(min(array.ndim, 2)):
        if found := _along(array, axis, source):
            return found
    # Experts that are computed together: what one has is below what the one before has.
    return _along(array.reshape(-1, array.shape[-1]), 0, source) if array.ndim == STACKED else None


def _along(array: Array, axis: int, source: SourceTensors) -> Any:
    found: list[str] = []
    start, table = 0, np.moveaxis(array, axis, 0).astype(np.float64)
    while start < len(table) and (name := nearest(table[start:], axis, source)):
        found.append(name)
        start += source.shapes[name][axis]
    complete = start == len(table) and len(found) > 1
    return ["join", float(axis), *({"key": name} for name in found)] if complete else None


def nearest(table: Array, axis: int, source: SourceTensors) -> str | None:
    """Return the tensor, AXIS of it first, that the first rows of TABLE are nearest to, if any is near."""
    gaps = []
    for name, shape in source.shapes.items():
        turned = (shape[axis], *shape[:axis], *shape[axis + 1 :]) if len(shape) > axis else ()
        if turned[1:] == table.shape[1:] and len(shape) == table.ndim and turned[0] <= len(table):
            part = np.moveaxis(source.read("key", name), axis, 0).astype(np.float64)
            size = float(np.linalg.norm(part))
            gap = float(np.linalg.norm(table[: len(part)] - part))
            gaps.append((gap / size if size else gap, name))
    gap, likeliest = min(gaps, default=(1.0, ""))
    return likeliest if gap < 1 else None
