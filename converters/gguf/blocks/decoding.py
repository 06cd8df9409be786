"""Rows of a GGUF file as MLX's parts: every code and every scale, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ....errors import UnsupportedError
from ...quantization import Blocks, Scheme
from ...quantization.packing import pack
from ...values import Array
from .layouts import BLOCKS
from .nibbles import together

Parts = dict[str, Array]
MOST_SCALE: Final = {"MXFP4": 254, "NVFP4": 126}  # above are infinities and what is no number
NO_NUMBER: Final = 127  # of NVFP4, which ggml reads as zero
K_TYPES: Final = "Q4_K", "Q5_K"


def scheme_of(kind: str) -> Scheme | None:
    """Return the scheme of MLX that holds blocks of the ggml type KIND; ``None`` where none does.

    >>> str(scheme_of("Q8_0")), scheme_of("Q6_K")
    ('8-bit affine, groups of 32', None)
    """
    layout = BLOCKS.get(kind)
    return layout and layout.scheme


def scale_dtype(kind: str) -> str:
    """Return the safetensors code of the scales that :func:`decoded` gives for KIND.

    >>> scale_dtype("Q4_1"), scale_dtype("Q4_K"), scale_dtype("MXFP4")
    ('F16', 'F32', 'U8')
    """
    return "U8" if kind in MOST_SCALE else "F32" if kind in K_TYPES else "F16"


def decoded(rows: Array, kind: str) -> Blocks:
    """Return ROWS, bytes of shape ``(rows, row bytes)`` of the ggml type KIND, as MLX's parts.

    Scales and biases are float16 as in the file; float32 of K types, whose scales are products.

    Raises:
        UnsupportedError: a scale is no number, or a bias is beyond float16.
    """
    layout = BLOCKS[kind]
    blocks = np.ascontiguousarray(rows).view(layout.record)
    parts = _READERS.get(kind, _read_plain)(blocks.reshape(-1), kind)
    shaped = {part: array.reshape(len(rows), -1) for part, array in parts.items()}
    return Blocks(shaped, layout.scheme)


def _read_plain(blocks: Array, kind: str) -> Parts:
    """Read types with one float16 scale a block."""
    scales = np.array(blocks["d"])
    center = BLOCKS[kind].center
    biases = np.array(blocks["m"]) if center is None else _centered(scales, center)
    if not np.isfinite(scales).all() or not np.isfinite(biases).all():
        raise UnsupportedError("a scale is no number, or a bias of it is beyond float16")
    return {"weight": _codes(blocks, kind), "scales": scales, "biases": biases}


def _centered(scales: Array, center: int) -> Array:
    """Return what is added so that code CENTER is zero: exact, for a power of two only shifts."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = scales * np.float16(-center)
    return found


def _codes(blocks: Array, kind: str) -> Array:
    if kind == "Q8_0":
        return (blocks["q"].view(np.uint8) ^ np.uint8(0x80)).view("<u4")
    nibbles = np.array(blocks["q"]).view(np.uint8).reshape(-1, 16)
    if "h" not in (blocks.dtype.names or ()):
        return together(nibbles, 16).view("<u4")
    low = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=-1)
    high = np.unpackbits(np.ascontiguousarray(blocks["h"]), axis=-1, bitorder="little")
    return pack(low | high << np.uint8(4), 5)


def _read_float(blocks: Array, kind: str) -> Parts:
    """Read types of tiny floating-point numbers."""
    scales = np.array(blocks["d"]).reshape(len(blocks), -1)
    if kind == "NVFP4":
        scales[scales == NO_NUMBER] = 0
    if scales.size and scales.max() > MOST_SCALE[kind]:
        raise UnsupportedError(f"a scale of the byte {scales.max()} is no number of {kind}")
    half = 8 if kind == "NVFP4" else 16
    nibbles = np.array(blocks["q"]).view(np.uint8).reshape(-1, half)
    return {"weight": together(nibbles, half).view("<u4"), "scales": scales}


def _read_k(blocks: Array, kind: str) -> Parts:
    """Read K types: eight scales and minima of six bits, and float16 numbers that they multiply."""
    factors = {part: blocks[part].astype(np.float32)[:, None] for part in ("d", "m")}
    if not all(np.isfinite(factor).all() for factor in factors.values()):
        raise UnsupportedError("a scale is no number")
    scales, minima = _six_bits(np.ascontiguousarray(blocks["s"]))
    low = np.stack([blocks["q"] & np.uint8(15), blocks["q"] >> np.uint8(4)], axis=2)
    codes = low.reshape(-1, 8, 32)
    if kind == "Q5_K":
        places = np.arange(8, dtype=np.uint8)[:, None]
        codes = codes | (blocks["h"][:, None] >> places & np.uint8(1)) << np.uint8(4)
    return {
        "weight": pack(codes.reshape(len(blocks), -1), BLOCKS[kind].scheme.bits),
        "scales": factors["d"] * scales,
        "biases": -(factors["m"] * minima),
    }


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Return eight scales and eight minima of each twelve bytes (``get_scale_min_k4`` of ggml)."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, rest & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, rest >> 4 | second >> 2 & 48], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


_READERS: Final[Mapping[str, Callable[[Any, str], Parts]]] = {
    "MXFP4": _read_float,
    "NVFP4": _read_float,
    "Q4_K": _read_k,
    "Q5_K": _read_k,
}
