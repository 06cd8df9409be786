"""Spoil bytes: flips, edge values in integer fields, cuts, insertions, swaps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from .drawn import Chance

Spoil = Callable[[Chance, bytearray, Sequence[int]], None]
EDGES = (
    *(0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256, 1000, 0x7FFF, 0x8000, 0xFFFF, 1 << 16),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 40), (1 << 62), (1 << 63) - 1, 1 << 63),
    (1 << 64) - 1,
)


def spoiled(chance: Chance, data: bytes, fields: Sequence[int] = ()) -> bytes:
    """Return DATA with one to four things wrong; FIELDS are places where an integer begins."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        chance.choice(FIELDWISE if fields and chance.random() < 0.6 else OPERATIONS)(
            chance, made, fields
        )
    return bytes(made)


def place(chance: Chance, data: bytearray, fields: Sequence[int]) -> int:
    """Return a place in DATA: in its head, its tail, a field, or anywhere."""
    if not data:
        return 0
    where = chance.random()
    if where < 0.35:
        at = int(len(data) ** chance.random())  # small ones as often as large ones
    elif where < 0.5:
        at = len(data) - int(len(data) ** chance.random())
    elif where < 0.7 and fields:
        at = chance.choice(fields)
    else:
        at = chance.randrange(len(data))
    return min(max(at, 0), len(data) - 1)


def flip(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Flip one bit."""
    if data:
        data[place(chance, data, fields)] ^= 1 << chance.randrange(8)


def put_byte(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Set one byte."""
    if data:
        at = place(chance, data, fields)
        data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x20, chance.randrange(256)))


def put_integer(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Write an edge value over an integer of 2, 4 or 8 bytes."""
    at = chance.choice(fields) if fields and chance.random() < 0.7 else place(chance, data, fields)
    form = chance.choice(("<H", "<I", "<I", "<Q", "<Q", ">I"))
    size = struct.calcsize(form)
    value = chance.choice(EDGES) if chance.random() < 0.6 else near(chance, data, at, size)
    if at + size <= len(data):
        data[at : at + size] = struct.pack(form, value % (1 << 8 * size))


def near(chance: Chance, data: bytearray, at: int, size: int) -> int:
    """Return a number close to the one of SIZE bytes that is there."""
    return int.from_bytes(data[at : at + size], "little") + chance.choice((-1, 1, 4, -4, 32))


def cut(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Lose the end."""
    del data[place(chance, data, fields) :]


def lose(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Lose a block."""
    at = place(chance, data, fields)
    del data[at : at + chance.choice((1, 2, 4, 8, 64, 1000))]


def add(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Insert a block of noise."""
    at = chance.choice((place(chance, data, fields), len(data)))
    data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 64, 1000)))


def double(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Repeat a block."""
    at, size = place(chance, data, fields), chance.choice((1, 4, 8, 32, 200, len(data)))
    data[at:at] = data[at : at + size]


def swap(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Exchange two blocks."""
    size = chance.choice((1, 4, 8, 32, 200))
    one, other = sorted((place(chance, data, fields), place(chance, data, fields)))
    if one + size <= other:
        data[one : one + size], data[other : other + size] = (
            data[other : other + size],
            data[one : one + size],
        )


def fill(chance: Chance, data: bytearray, fields: Sequence[int]) -> None:
    """Fill a block with one byte."""
    at = place(chance, data, fields)
    size = min(chance.choice((4, 8, 64, 1000)), len(data) - at)
    data[at : at + size] = bytes([chance.choice((0, 0xFF, 0x20, 0x5B))]) * size


OPERATIONS: tuple[Spoil, ...] = (
    *(flip, flip, flip, put_byte, put_integer, put_integer),
    *(cut, lose, add, double, swap, fill),
)
FIELDWISE: tuple[Spoil, ...] = (put_integer, put_integer, put_integer, put_byte, flip)
