"""Block scales of tiny floating-point codes, searched: the plain one and its neighbours tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...values import Array
from ..codebooks import CODES, SCALES
from ..workspace import Room
from .groups import NARROWEST

Bytes = NDArray[np.int64]

# mode -> how many bytes below and above the plain scale are tried. MLX's own is among them.
REACH: Final[Mapping[str, int]] = {"mxfp4": 1, "mxfp8": 1, "nvfp4": 4}
SIGN: Final[Mapping[str, int]] = {"mxfp4": 8, "mxfp8": 128, "nvfp4": 8}
FINITE: Final[Mapping[str, Array]] = {
    mode: worth[np.isfinite(worth)] for mode, worth in SCALES.items()
}


def searched(
    values: Array, mode: str, room: Room, importance: Array | None = None
) -> tuple[Array, Array]:
    """Return codes, uint8 ``(group, groups)``, and the scales' bytes, ``(groups,)``.

    Args:
        values: float32, ``(groups, group)``.
        mode: ``mxfp4``, ``mxfp8`` or ``nvfp4``.
        room: where arrays are kept.
        importance: of the squared error of each element, float32, ``(groups, group)``.
    """
    signed = room.copy("signed", values.T, np.float32)
    sizes = np.abs(signed, out=room("sizes", signed.shape, np.float32))
    ideal = sizes.max(0).astype(np.float64) / np.nanmax(CODES[mode])
    per_ideal = 1 / np.maximum(ideal, NARROWEST)
    sizes *= per_ideal.astype(np.float32)
    plain = _byte(ideal, mode)
    chosen, least = plain, np.full(len(plain), np.inf)
    importance = None if importance is None else importance.T
    for byte in _tried(plain, mode):
        errors = _errors(sizes, SCALES[mode][byte] * per_ideal, mode, importance)
        chosen = np.where(errors < least, byte, chosen)
        least = np.minimum(errors, least)
    codes = _codes(sizes, SCALES[mode][chosen] * per_ideal, mode)
    codes[signed < 0] |= SIGN[mode]
    return codes, chosen.astype(np.uint8)


def nearest(values: Array, scales: Array, mode: str) -> Array:
    """Return the codes nearest to VALUES, ``(..., groups)``, by SCALES, ``(groups,)``; uint8."""
    codes = _codes(np.abs(values), scales, mode)
    codes[values < 0] |= SIGN[mode]
    return codes


def _byte(ideal: NDArray[np.float64], mode: str) -> Bytes:
    """Return the byte whose scale is nearest to IDEAL; for powers of two by its logarithm."""
    if mode == "nvfp4":
        nearest = np.minimum(ideal, FINITE[mode].max()).astype(np.float32)
        byte: Bytes = nearest.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.int64)
        return byte
    byte = np.rint(np.log2(np.where(ideal == 0, 1, ideal))).astype(np.int64)
    return np.clip(byte + 127, 0, 254)


def _tried(plain: Bytes, mode: str) -> list[Bytes]:
    last = 126 if mode == "nvfp4" else 254  # the largest that is finite
    offsets = sorted(range(-REACH[mode], REACH[mode] + 1), key=abs)
    return [np.clip(plain + offset, 0, last) for offset in offsets]


def _errors(sizes: Array, scales: Array, mode: str, importance: Array | None) -> Array:
    """Return the squared error of each group with SCALES, both in plain scales."""
    rest = CODES[mode][_codes(sizes, scales, mode)]
    rest *= scales.astype(np.float32)
    rest -= sizes
    errors: Array = np.einsum("gn,gn->n", rest if importance is None else rest * importance, rest)
    return errors


def _codes(sizes: Array, scales: Array, mode: str) -> Array:
    """Return the codes nearest to SIZES, which are not negative."""
    steps = np.where(scales == 0, np.inf, scales)
    places = sizes * (1 / steps).astype(np.float32)
    if mode == "mxfp8":
        np.minimum(places, 448, out=places)
        bits: Array = places.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        return bits
    codes: Array = np.minimum(np.rint(places * 2), 4)  # 0, 0.5, 1, 1.5, 2
    codes += np.clip(np.rint(places), 2, 4) - 2  # 3, 4
    codes += places > 5  # 6
    return codes.astype(np.uint8)
