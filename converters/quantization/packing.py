"""Codes in a row of 32-bit words: one stream of bits, the lowest bit of the first code first.

MLX packs every width this way (`mlx/backend/cpu/quantized.cpp`); eight codes of B bits are B bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..values import Array
from .workspace import Room

Codes = NDArray[np.uint8]
OCTET: Final = 8  # codes that fill whole bytes, whatever their width


def unpack(words: Array, bits: int, room: Room | None = None) -> Codes:
    """Return the codes in WORDS, shape ``(..., words)`` uint32, as uint8 ``(..., words * 32 / bits)``.

    They lie in ROOM, if there is one, where it is not WORDS itself that is returned (8 bits).

    >>> unpack(np.array([0x76543210], np.uint32), 4).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    packed = np.ascontiguousarray(words, "<u4").view(np.uint8)
    *lead, nbytes = packed.shape
    codes = packed if bits == OCTET else _unpacked(packed.reshape(-1), bits, room or Room())
    return codes.reshape(*lead, nbytes * OCTET // bits)


def _unpacked(packed: Codes, bits: int, room: Room) -> Codes:
    """Return the codes of BITS in the bytes PACKED; undoes the steps of :func:`pack_pairs`."""
    nbytes = 1 if OCTET % bits == 0 else bits  # the fewest that whole codes fill
    count = nbytes * OCTET // bits
    wide = room("codes", (packed.size // nbytes,), f"<u{count}")
    if nbytes == 1:
        np.copyto(wide, packed)
    else:
        target, source = wide.view(np.uint8).reshape(-1, count), packed.reshape(-1, nbytes)
        for byte in range(nbytes):
            target[:, byte] = source[:, byte]
    while count > 1:
        count //= 2
        _apart(wide, count * bits, count * OCTET, room("moved", wide.shape, wide.dtype))
    return wide.view(np.uint8)


def _apart(packed: NDArray[Any], used: int, width: int, moved: NDArray[Any]) -> None:
    """Move the second part of USED bits in every two of PACKED to WIDTH bits; undoes ``_closer``.

    What lies above both parts goes. MOVED is room for as many numbers.
    """
    first = _firsts(packed.dtype, used, width)
    kind = packed.dtype.type
    np.left_shift(packed, kind(width - used), out=moved)
    moved &= kind(first << width)
    packed &= kind(first)
    packed |= moved


def pack(codes: Array, bits: int) -> NDArray[np.uint32]:
    """Return CODES, below ``2**bits``, shape ``(..., columns)``, as words; undoes :func:`unpack`.

    Raises:
        ValueError: the columns do not fill whole words.

    >>> pack(np.arange(8), 4).tolist() == [0x76543210]
    True
    """
    if codes.shape[-1] * bits % 32:
        raise ValueError(f"{codes.shape[-1]} codes of {bits} bits do not fill whole words")
    if bits == OCTET:  # by fours too
        return np.array(codes, np.uint8, order="C").view("<u4")
    narrow = np.ascontiguousarray(codes, np.uint8)
    return without_gaps(pack_pairs(narrow[..., 0::2], narrow[..., 1::2], bits), bits)


def pack_pairs(first: Codes, second: Codes, bits: int) -> NDArray[Any]:
    """Return codes of even columns, FIRST, and of odd ones, SECOND, packed by eight.

    Args:
        first: shape ``(..., columns / 2)``, in C order.
        second: the same.
        bits: of a code.

    Returns:
        ``(..., columns / 8)`` uint32, or uint64 where codes have more than 4 bits: the lowest BITS
        bytes of each are eight codes, the others 0.

    >>> codes = np.arange(8, dtype=np.uint8)
    >>> hex(pack_pairs(codes[0::2], codes[1::2], 4)[0])
    '0x76543210'
    """
    kinds: tuple[Any, Any] = (np.uint8, np.uint32) if 2 * bits <= OCTET else (np.uint16, np.uint64)
    lane, wide = kinds
    pairs: Array = second.astype(lane)
    pairs *= lane(1 << bits)  # numpy shifts bytes one by one
    pairs |= first
    packed: NDArray[Any] = pairs.view(wide)
    width = 8 * pairs.itemsize
    if 2 * bits < width:
        packed = _closer(_closer(packed, 2 * bits, width), 4 * bits, 2 * width)
    return packed


def _closer(packed: NDArray[Any], used: int, width: int) -> NDArray[Any]:
    """Return PACKED with the second of every two parts of WIDTH bits moved to the first, of USED bits."""
    kind = packed.dtype.type
    first = _firsts(packed.dtype, used, width)
    moved: NDArray[Any] = packed >> kind(width - used)
    moved &= kind(first << used)
    moved |= packed & kind(first)
    return moved


def _firsts(dtype: np.dtype[Any], used: int, width: int) -> int:
    """Return a number of DTYPE that has the lowest USED bits of the first of every two parts of WIDTH."""
    return sum(((1 << used) - 1) << place for place in range(0, 8 * dtype.itemsize, 2 * width))


def without_gaps(packed: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Return PACKED, as ``pack_pairs`` gives it, as words, shape ``(..., columns * bits / 32)``.

    >>> without_gaps(np.array([0x30201, 0x60504, 0x90807, 0xC0B0A], np.uint32), 3).tobytes().hex()
    '0102030405060708090a0b0c'
    """
    if packed.itemsize == bits:
        return np.array(packed, order="C").view("<u4")
    *lead, count = packed.shape
    source = np.ascontiguousarray(packed).view(np.uint8).reshape(*lead, count, packed.itemsize)
    made = np.empty((*lead, count, bits), np.uint8)
    for byte in range(bits):  # a byte at a time is several times faster than three of them
        made[..., byte] = source[..., byte]
    return made.reshape(*lead, count * bits).view("<u4")


def pack_columns(codes: Codes, bits: int) -> NDArray[np.uint32]:
    """Return CODES, uint8 ``(columns, rows)``, as words ``(rows, columns * bits / 32)``.

    What :func:`pack` makes of their transpose, in a sixth of the time.

    >>> pack_columns(np.arange(8, dtype=np.uint8)[:, None], 4).tolist() == [[0x76543210]]
    True
    """
    columns, rows = codes.shape
    octets = codes.reshape(columns // OCTET, OCTET, rows)
    joined = octets[:, -1].astype("<u8")
    for place in reversed(range(OCTET - 1)):
        joined <<= np.uint64(bits)
        joined |= octets[:, place].astype("<u8")
    wide = np.ascontiguousarray(joined.T).view(np.uint8).reshape(rows, columns // OCTET, OCTET)
    return np.ascontiguousarray(wide[..., :bits]).reshape(rows, -1).view("<u4")
