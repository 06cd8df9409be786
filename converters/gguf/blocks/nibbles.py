"""Codes of four bits: neighbours share a byte in MLX, codes half a block apart do in ggml."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...quantization.workspace import Room
from ...values import Array

Bytes = NDArray[np.uint8]
FOUR: Final = 4  # bits of a code
BYTE: Final = np.uint16(8)  # bits of the lower one of two bytes
UPPER: Final = np.uint16(1 << 8)  # what the upper one counts
HALVES: Final = "first", "second"


def apart(packed: Array, half: int, room: Room | None = None) -> Bytes:
    """Return PACKED, neighbours in a byte, with code i and code i + HALF of a block in a byte.

    Args:
        packed: bytes, shape ``(blocks, half)``, the lower four bits first.
        half: codes in half a block, 8 or 16.
        room: where the result lies, if there is one.

    >>> codes = np.arange(16, dtype=np.uint8)
    >>> pairs = (codes[0::2] | codes[1::2] << 4)[None]
    >>> [f"{byte:02x}" for byte in apart(pairs, 8)[0]]
    ['80', '91', 'a2', 'b3', 'c4', 'd5', 'e6', 'f7']
    """
    halves, room = packed.view(_words(half)).reshape(-1, 2), room or Room()
    first, second = (  # apart, as numpy works on neighbours several at a time
        room.copy(name, halves[:, place], halves.dtype) for place, name in enumerate(HALVES)
    )
    even, odd = _swapped(first, second, room)
    pairs = room.copy("pairs", odd.view(np.uint8), "<u2")
    pairs *= UPPER
    pairs += even.view(np.uint8)
    return pairs.view(np.uint8).reshape(-1, half)


def together(packed: Array, half: int) -> Bytes:
    """Return PACKED, code i and i + HALF in a byte, with neighbours in a byte; undoes :func:`apart`."""
    pairs, words = np.ascontiguousarray(packed, np.uint8).view("<u2"), _words(half)
    even, odd = (it.astype(np.uint8).reshape(-1).view(words) for it in (pairs, pairs >> BYTE))
    halves = np.stack(_swapped(even, odd, Room()), axis=1)
    return halves.view(np.uint8).reshape(-1, half)


def _words(half: int) -> np.dtype[np.unsignedinteger]:
    """Return the dtype of the bytes of half a block of twice HALF codes, taken as one number."""
    return np.dtype(f"<u{half // 2}")


def _swapped(first: Array, second: Array, room: Room) -> tuple[Array, Array]:
    """Return both with the upper code of each byte in FIRST swapped for the lower one in SECOND, in ROOM."""
    kind = first.dtype.type
    lower = kind(int.from_bytes(b"\x0f" * first.itemsize, "little"))
    change, other = (room(it, first.shape, first.dtype) for it in ("change", "other"))
    np.right_shift(first, kind(FOUR), out=change)
    change ^= second
    change &= lower
    np.bitwise_xor(second, change, out=other)
    change <<= kind(FOUR)
    change ^= first
    return change, other
