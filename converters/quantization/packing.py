"""Codes in a row of 32-bit words: one stream of bits, the lowest bit of the first code first.

MLX packs every width this way (`mlx/backend/cpu/quantized.cpp`); eight codes of B bits are B bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..values import Array

Codes = NDArray[np.uint8]
OCTET: Final = 8  # codes that fill whole bytes, whatever their width


def unpack(words: Array, bits: int) -> Codes:
    """Return the codes in WORDS, shape ``(..., words)`` uint32, as uint8 ``(..., words * 32 / bits)``.

    >>> unpack(np.array([0x76543210], np.uint32), 4).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    packed = np.ascontiguousarray(words, "<u4").view(np.uint8)
    lead, columns = packed.shape[:-1], packed.shape[-1] * OCTET // bits
    if OCTET % bits == 0:  # codes do not cross bytes
        shifts = np.arange(0, OCTET, bits, dtype=np.uint8)
        apart: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    else:
        wide = np.zeros((*lead, columns // OCTET, OCTET), np.uint8)
        wide[..., :bits] = packed.reshape(*lead, columns // OCTET, bits)
        apart = (wide.view("<u8") >> _places(bits)) & np.uint64((1 << bits) - 1)
    return apart.astype(np.uint8, copy=False).reshape(*lead, columns)


def pack(codes: Array, bits: int) -> NDArray[np.uint32]:
    """Return CODES, below ``2**bits``, shape ``(..., columns)``, as words; undoes :func:`unpack`.

    Raises:
        ValueError: the columns do not fill whole words.

    >>> pack(np.arange(8), 4).tolist() == [0x76543210]
    True
    """
    if codes.shape[-1] * bits % 32:
        raise ValueError(f"{codes.shape[-1]} codes of {bits} bits do not fill whole words")
    *lead, columns = codes.shape
    wide = codes.astype("<u8").reshape(*lead, columns // OCTET, OCTET) << _places(bits)
    joined = np.bitwise_or.reduce(wide, axis=-1, keepdims=True)
    packed = np.ascontiguousarray(joined.view(np.uint8)[..., :bits])
    return packed.reshape(*lead, columns * bits // OCTET).view("<u4")


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


def _places(bits: int) -> NDArray[Any]:
    """Return where each of eight codes begins, in bits."""
    return np.arange(OCTET, dtype=np.uint64) * np.uint64(bits)
