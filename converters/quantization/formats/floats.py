"""Codes that are small floating-point numbers, with a scale for a block of rows and columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....errors import BadInputError
from ...checkpoints import Checkpoint, Header
from ...common.dtypes import FLOATS
from ...values import Array
from .assembled import Source, computed, each_block, read_rows


def scaled(raw: Checkpoint, name: str, scale: str, block: tuple[int, int] | None = None) -> Source:
    """Return tensor NAME of RAW times its tensor SCALE, dense, rounded to float32 once.

    Args:
        raw: the checkpoint.
        name: a weight of two axes or more, in a floating-point dtype.
        scale: has one number for the weight, for each row, or for each BLOCK of rows and columns.
        block: rows and columns of a block, the last of which may be smaller.

    Raises:
        BadInputError: the shapes do not fit.
    """
    header, scales = raw.headers[name], raw.headers[scale]
    if header.dtype not in FLOATS or scales.dtype not in FLOATS or len(header.shape) < 2:
        raise BadInputError(
            f"{name} is {header} with {scale} {scales}, expected floats in two axes"
        )
    grid = raw.read(scale).astype(np.float64)
    spread = _grid(header, grid, block)
    if spread is None:
        raise BadInputError(f"{scale} is {scales}, which fits no blocks of {name}, {header}")
    tall, grids = spread
    columns = header.shape[-1]

    def rows_of(rows: slice) -> Iterator[Array]:
        for part in each_block(rows, columns):
            numbers = np.arange(part.start, part.stop)
            values = read_rows(raw, name, part).astype(np.float64)
            yield (values * _wide(grids[_place(numbers, tall, header)], columns, block)).astype(
                np.float32
            )

    return computed(Header("F32", header.shape), rows_of)


def _grid(header: Header, grid: Array, block: tuple[int, int] | None) -> tuple[int, Array] | None:
    """Return how many rows share a row of the grid, and the grid in two axes; None if it fits not."""
    *lead, rows, columns = header.shape
    count = int(np.prod(lead, dtype=np.int64))
    if grid.size == 1:
        return rows, np.broadcast_to(grid.reshape(1, 1), (count, 1))
    if block is None:
        fits = grid.size == count * rows
        return (1, grid.reshape(-1, 1)) if fits else None
    across = (*lead, -(-rows // block[0]), -(-columns // block[1]))
    return (block[0], grid.reshape(-1, across[-1])) if grid.shape == across else None


def _place(numbers: Array, tall: int, header: Header) -> Array:
    """Return which row of the grid each of the rows NUMBERS has."""
    rows = header.shape[-2]
    place: Array = numbers // rows * -(-rows // tall) + numbers % rows // tall
    return place


def _wide(grid: Array, columns: int, block: tuple[int, int] | None) -> Array:
    """Return rows of a GRID, each number as often as it has columns."""
    if grid.shape[-1] == 1 or block is None:
        return grid
    return np.repeat(grid, block[1], axis=-1)[:, :columns]
