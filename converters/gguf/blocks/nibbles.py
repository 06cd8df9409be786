"""Codes of four bits: neighbours share a byte in MLX, codes half a block apart do in ggml."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...values import Array

Bytes = NDArray[np.uint8]
# What is swapped with what lies so many bits above it, in 64 bits.
BYTES: Final = (np.uint64(8), np.uint64(0x0000FF000000FF00))
NIBBLES: Final = (np.uint64(4), np.uint64(0x00F000F000F000F0))


def apart(packed: Array, half: int) -> Bytes:
    """Return PACKED, neighbours in a byte, with code i and code i + HALF of a block in a byte.

    Args:
        packed: bytes, shape ``(blocks, half)``, the lower four bits first.
        half: codes in half a block, 8 or 16.

    >>> codes = np.arange(16, dtype=np.uint8)
    >>> pairs = (codes[0::2] | codes[1::2] << 4)[None]
    >>> [f"{byte:02x}" for byte in apart(pairs, 8)[0]]
    ['80', '91', 'a2', 'b3', 'c4', 'd5', 'e6', 'f7']
    """
    halves = packed.view("<u2").reshape(-1, 2, half // 4)
    words = np.empty((len(halves), half // 8), "<u8")
    fours = words.view("<u2").reshape(len(halves), half // 4, 2)
    fours[:, :, 0], fours[:, :, 1] = halves[:, 0], halves[:, 1]
    room = np.empty_like(words)
    for stage in (BYTES, NIBBLES):
        _swap(words, room, *stage)
    return words.view(np.uint8)


def together(packed: Array, half: int) -> Bytes:
    """Return PACKED, code i and i + HALF in a byte, with neighbours in a byte; undoes :func:`apart`."""
    words = np.array(packed, np.uint8, order="C").view("<u8")
    room = np.empty_like(words)
    for stage in (NIBBLES, BYTES):
        _swap(words, room, *stage)
    fours = words.view("<u2").reshape(-1, half // 4, 2)
    halves = np.empty((len(fours), 2, half // 4), "<u2")
    halves[:, 0], halves[:, 1] = fours[:, :, 0], fours[:, :, 1]
    return halves.view(np.uint8).reshape(-1, half)


def _swap(words: Array, room: Array, shift: np.uint64, mask: np.uint64) -> None:
    """Swap the bits of WORDS under MASK with those SHIFT above, in place; ROOM is anyone's after."""
    np.right_shift(words, shift, out=room)
    np.bitwise_xor(room, words, out=room)
    np.bitwise_and(room, mask, out=room)
    np.bitwise_xor(words, room, out=words)
    np.left_shift(room, shift, out=room)
    np.bitwise_xor(words, room, out=words)
