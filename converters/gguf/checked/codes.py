"""What the codes of a GGUF file's blocks could stand for, so that it can be asked whether they were chosen well."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ...common.dtypes import unit_roundoff
from ...quantization import Blocks
from ...values import Array
from ..blocks import decoded, scheme_of
from ..types import decode


class Grid(NamedTuple):
    """For each number of a tensor in blocks, float64, in the tensor's shape.

    Attributes:
        values: what is stored.
        low: the least that its block could stand for.
        high: the largest.
        step: how far neighbours of the block are apart, at most.
        room: by how much the rounding of scales may have moved the point half way between two.
    """

    values: Array
    low: Array
    high: Array
    step: Array
    room: Array


HALF: Final = unit_roundoff("float16")  # codes are chosen by scales that are rounded afterwards
UNKNOWN: Final = 32  # numbers whose range tells the step, where it is not known how blocks are made


def grid_of(rows: Array, kind: str) -> Grid:
    """Return what ROWS, bytes of the ggml type KIND, are and could be, shape ``(rows, columns)``."""
    if scheme_of(kind) is None:
        return _by_range(decode(rows, kind).astype(np.float64))
    blocks = decoded(rows, kind)
    values = blocks.values()
    return _affine(blocks, values) if blocks.scheme.affine else _by_table(blocks, values)


def _affine(blocks: Blocks, values: Array) -> Grid:
    scales, biases = (_spread(blocks, part) for part in ("scales", "biases"))
    most = (1 << blocks.scheme.bits) - 1
    ends = np.stack([biases, biases + most * scales])
    step = np.abs(scales)
    return Grid(values, ends.min(0), ends.max(0), step, step * most * HALF + np.abs(biases) * HALF)


def _by_table(blocks: Blocks, values: Array) -> Grid:
    """Return the grid of blocks of tiny floats: its steps are those of E2M1, 2 of 6 at most."""
    grouped = blocks.codes().reshape(*blocks.parts["scales"].shape, -1)
    like = Blocks.of_codes(
        np.full_like(grouped, 7).reshape(values.shape), _scales(blocks), blocks.scheme
    )
    most = np.abs(like.values())  # code 7 is the largest number of E2M1, 6
    return Grid(values, -most, most, most / 3, np.zeros_like(most))


def _scales(blocks: Blocks) -> dict[str, Array]:
    return {part: it for part, it in blocks.parts.items() if part != "weight"}


def _by_range(values: Array) -> Grid:
    """Return a grid of which only the VALUES are known: a step is as large as those beside it."""
    width = values.shape[-1]
    near = np.abs(values).reshape(-1, UNKNOWN if width % UNKNOWN == 0 else width)
    most = np.repeat(near.max(-1), near.shape[-1]).reshape(values.shape)
    return Grid(values, -most, most, most, np.zeros_like(most))


def _spread(blocks: Blocks, part: str) -> Array:
    """Return the numbers of PART, one for each code, float64."""
    wide = blocks.parts[part].astype(np.float64)
    return np.repeat(wide, blocks.scheme.group_size, axis=-1)
