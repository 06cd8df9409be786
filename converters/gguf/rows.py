"""The rows of a tensor of a GGUF file, made of a checkpoint's a few at a time, or a sample of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from ..checkpoints import Checkpoint
from ..checkpoints.assembled import read_rows
from ..quantization import Blocks, Dequantized
from ..quantization.workspace import Room
from ..values import Array
from .rules import Rule, Wanted

BLOCK: Final = 1 << 20  # numbers at a time, where they are float32
CODES: Final = 1 << 21  # codes at a time: fewer cost Python, more leave the cache
SAMPLE: Final = 1 << 15  # numbers next to each other in a sample of a large tensor
Rows = Array | Blocks


def quantized(source: Checkpoint, name: str) -> bool:
    """Tell whether NAME of SOURCE is seen dense and stored as codes."""
    return isinstance(source, Dequantized) and name in source.schemes


def made_rows(source: Checkpoint, name: str, rule: Rule, wanted: Wanted) -> Iterator[Rows]:
    """Yield what RULE makes of tensor NAME of SOURCE, rows in their order, a few at a time.

    Those of a quantized weight come as codes, others in their own dtype, shape ``(rows, columns)``. They
    are valid until the next ones are asked for.
    """
    shape = source.headers[name].shape
    if len(shape) < 2 or not rule.moves_rows:  # a vector is no rows
        made = rule.act(source.read(name), wanted)
        rows = made.reshape(-1, made.shape[-1])
        yield from (rows[block] for block in _blocks(len(rows), rows.shape[1], BLOCK))
        return
    numbers, room = rule.rows_of(shape, wanted), Room()
    for block in _blocks(len(numbers), shape[-1], CODES):
        yield rows_of(source, name, numbers[block], room)


def sample(
    source: Checkpoint, name: str, rule: Rule, wanted: Wanted
) -> Iterator[tuple[slice, Array]]:
    """Yield some of the rows that RULE makes of NAME in float32, and their place among all of them.

    Of a large tensor these are a few at its beginning and a few in its middle.
    """
    shape = source.headers[name].shape
    if len(shape) < 2 or not rule.moves_rows:
        start = 0
        for rows in map(dense, made_rows(source, name, rule, wanted)):
            yield slice(start, start + len(rows)), rows
            start += len(rows)
        return
    numbers, some = rule.rows_of(shape, wanted), max(2, SAMPLE // shape[-1])
    for start in sorted({0, len(numbers) // 2}):
        block = slice(start, min(start + some, len(numbers)))
        yield block, dense(rows_of(source, name, numbers[block], Room()))


def rows_of(source: Checkpoint, name: str, numbers: Array, room: Room) -> Rows:
    """Return the rows NUMBERS, which lie close together, of tensor NAME of SOURCE; they may lie in ROOM."""
    first, last = int(numbers.min()), int(numbers.max()) + 1
    found = _read(source, name, slice(first, last), room)
    if np.array_equal(numbers, np.arange(first, last)):
        return found
    picked = numbers - first
    if not isinstance(found, Blocks):
        return np.take(found, picked, axis=0)
    return Blocks({part: array[picked] for part, array in found.parts.items()}, found.scheme)


def dense(rows: Rows) -> Array:
    """Return ROWS in float32; codes at their canonical values, rounded to it once."""
    if isinstance(rows, Blocks):
        return rows.dense()
    return rows.astype(np.float32, copy=False)


def _read(source: Checkpoint, name: str, rows: slice, room: Room) -> Rows:
    if isinstance(source, Dequantized) and name in source.schemes:
        return Blocks(source.part_rows(name, rows, room), source.schemes[name])
    return read_rows(source, name, rows, room.place("rows"))


def _blocks(rows: int, columns: int, size: int) -> Iterator[slice]:
    step = max(1, size // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def count(shape: tuple[int, ...]) -> int:
    """Return how many rows a tensor of SHAPE has, all axes but the last taken as one."""
    return math.prod(shape[:-1])
