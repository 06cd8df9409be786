"""Codes that are small floating-point numbers, with a scale for a block of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ....errors import BadInputError
from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Source, computed, read_rows
from ...common.dtypes import FLOATS
from ...values import Array
from ..mlx import each_block

GROUP = 32  # columns that share a scale in mxfp4 and mxfp8


class Blocked(NamedTuple):
    """A weight in blocks.

    Attributes:
        shape: of the weight, two axes or more.
        block: rows and columns that share a scale; the last block may be smaller.
    """

    shape: tuple[int, ...]
    block: tuple[int, int]

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of its scales."""
        *lead, rows, columns = self.shape
        return (*lead, -(-rows // self.block[0]), -(-columns // self.block[1]))

    def checked(self, scales: Array, name: str) -> Array:
        """Return SCALES, called NAME, in two axes.

        Raises:
            BadInputError: they are not one for each block.
        """
        if scales.size != math.prod(self.grid):
            raise BadInputError(
                f"{name} has shape {list(scales.shape)}, expected {list(self.grid)} for a weight"
                f" {list(self.shape)} in blocks of {list(self.block)}"
            )
        return scales.reshape(-1, self.grid[-1])

    def place(self, rows: slice) -> Array:
        """Return for each of ROWS, all axes but the last taken as one, its row of the scales."""
        numbers = np.arange(rows.start, rows.stop)
        height = self.shape[-2]
        place: Array = numbers // height * self.grid[-2] + numbers % height // self.block[0]
        return place


def replicated(scales: Array, name: str, blocked: Blocked) -> Source:
    """Return SCALES, called NAME, one for each group of 32 columns instead of one for each block."""
    grid = blocked.checked(scales, name)
    *lead, columns = blocked.shape
    groups, times = columns // GROUP, blocked.block[1] // GROUP

    def rows_of(rows: slice) -> Iterator[Array]:
        for part in each_block(rows, groups):
            yield np.ascontiguousarray(
                np.repeat(grid[blocked.place(part)], times, axis=-1)[:, :groups]
            )

    return computed(Header("U8", (*lead, groups)), rows_of)


def scaled(raw: Checkpoint, name: str, scale: str, block: tuple[int, int] | None = None) -> Source:
    """Return tensor NAME of RAW times its tensor SCALE, dense, rounded to float32 once.

    Args:
        raw: the checkpoint.
        name: a weight of two axes or more, in a floating-point dtype.
        scale: has one number for each BLOCK of rows and columns.
        block: without it, SCALE has one number for the weight or for each row.

    Raises:
        BadInputError: the shapes do not fit.
    """
    header, scales = raw.headers[name], raw.headers[scale]
    if header.dtype not in FLOATS or scales.dtype not in FLOATS or len(header.shape) < 2:
        raise BadInputError(
            f"{name} is {header} with {scale} {scales}, expected floats in two axes"
        )
    numbers = raw.read(scale).astype(np.float64)
    tall = header.shape[-2] if numbers.size == 1 else 1
    blocked = Blocked(header.shape, block or (tall, header.shape[-1]))
    grid, columns = blocked.checked(numbers, scale), header.shape[-1]

    def rows_of(rows: slice) -> Iterator[Array]:
        for part in each_block(rows, columns):
            wide = np.repeat(grid[blocked.place(part)], blocked.block[1], axis=-1)[:, :columns]
            yield (read_rows(raw, name, part).astype(np.float64) * wide).astype(np.float32)

    return computed(Header("F32", header.shape), rows_of)
