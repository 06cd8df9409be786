"""How ggml stores numbers: the types that can be written, and how far each may lie from the truth."""

from __future__ import annotations

import math
import warnings
from typing import Final

import ml_dtypes
import numpy as np

from ..common.dtypes import dtype_of, unit_roundoff
from ..values import Array
from .library import gguf

# What is written, and what llama.cpp calls a file that is mostly so (general.file_type).
TYPES: Final = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7}
# Types that keep codes of a quantized source, likewise.
CODED: Final = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q8_0": 7,
    "MXFP4": 38,
    "NVFP4": 39,
}
BLOCK: Final = 32  # numbers that share a scale in Q8_0
FLOATS: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Kinds of tensors that llama.cpp's converter leaves in float32 whatever is asked for
# (conversion/base.py, prepare_tensors), besides vectors and norms.
ALWAYS_FLOAT32: Final = frozenset(
    {"FFN_GATE_INP", "FFN_GATE_INP_SHEXP", "POS_EMBD", "TOKEN_TYPES", "SSM_CONV1D"}
    | {"SHORTCONV_CONV", "TIME_MIX_FIRST", "TIME_MIX_W1", "TIME_MIX_W2", "TIME_MIX_DECAY_W1"}
    | {"TIME_MIX_DECAY_W2", "TIME_MIX_LERP_FUSED", "POSNET_NORM1", "POSNET_NORM2"}
    | {"ALTUP_CORRECT_COEF", "ALTUP_PREDICT_COEF"}
)
# Q8_0 stores round(x / d) with d = largest / 127: at most d / 2 away. The scale itself is rounded
# to float16 (127 * 2**-11 of d) and the file may have been float16 before (another 2**-11 * 127).
Q8_SLACK: Final = 0.5 + 2 * 127 * 2.0**-11


def decode(rows: Array, kind: str) -> Array:
    """Return ROWS, the bytes of numbers stored as the ggml type KIND, in float32."""
    if kind in FLOATS:
        return rows.view(dtype_of(FLOATS[kind])).astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
        return np.asarray(gguf.dequantize(np.ascontiguousarray(rows), _type(kind)))


def is_known(kind: str) -> bool:
    """Tell whether tensors stored as the ggml type KIND can be read as numbers."""
    try:
        decode(np.zeros((1, gguf.GGML_QUANT_SIZES[_type(kind)][1]), np.uint8), kind)
    except (NotImplementedError, ValueError):
        return False
    return True


def encode(rows: Array, kind: str) -> Array:
    """Return ROWS (any float dtype) as the ggml type KIND stores them, rounded once."""
    exact = rows.astype(np.float32, copy=False)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(gguf.quantize(np.ascontiguousarray(exact), _type(kind)))


def overflows(rows: Array, kind: str) -> bool:
    """Tell whether a number of ROWS is too large for KIND, or none at all."""
    largest = float(np.max(np.abs(rows.astype(np.float32, copy=False)), initial=0.0))
    limit = {"F16": 65504.0, "Q8_0": 65504.0 * 127}.get(kind, float(np.finfo(np.float32).max))
    return not largest <= limit


def nbytes(shape: tuple[int, ...], kind: str) -> int:
    """Return how many bytes a tensor of SHAPE takes as KIND."""
    block, size = gguf.GGML_QUANT_SIZES[_type(kind)]
    return math.prod(shape) // block * size


def code(kind: str) -> int:
    """Return ggml's number of the type KIND."""
    return int(_type(kind))


def fitting(shape: tuple[int, ...], kind: str) -> str:
    """Return KIND, or what llama.cpp takes for rows that are not whole blocks of it.

    >>> fitting((8, 64), "Q8_0"), fitting((8, 40), "Q8_0")
    ('Q8_0', 'F16')
    """
    return "F16" if shape[-1] % gguf.GGML_QUANT_SIZES[_type(kind)][0] else kind


def allowed(exact: Array, kind: str, computed: str | None = None) -> Array:
    """Return how far each of the numbers EXACT may lie from what is stored as KIND.

    Args:
        exact: float32 rows, shape ``(rows, columns)``.
        kind: ``F32``, ``F16``, ``BF16`` or ``Q8_0``.
        computed: the dtype in which they may have been computed, where they were not only moved.
    """
    size = np.abs(exact)
    extra = unit_roundoff(computed) * size if computed else 0.0
    if kind == "Q8_0":
        blocks = size.reshape(len(size), -1, BLOCK).max(axis=-1, keepdims=True) / 127
        slack = np.broadcast_to(Q8_SLACK * blocks, (*blocks.shape[:2], BLOCK)).reshape(size.shape)
        return np.asarray(slack + 127 * 2.0**-25 + extra)  # a scale below float16's normal numbers
    if kind == "F32":
        return np.asarray(size * 0.0 + extra)
    tiny = float(ml_dtypes.finfo(FLOATS[kind]).smallest_subnormal)  # type: ignore[no-untyped-call]
    return np.asarray(unit_roundoff(FLOATS[kind]) * size + tiny / 2 + extra)


def _type(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind]
