"""ONNX's constants for a quantized weight: ``DequantizeLinear`` in blocks, and ``MatMulNBits``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedError
from ...values import Array
from .. import Blocks, Scheme
from .zeros import whole, zeros_of

# Bits of codes -> bits of the type that holds them.
HELD: Final = {2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}
MATMUL: Final = (2, 4, 8)  # what onnxruntime has kernels for
WIDEST_FLOAT_ZERO: Final = 4  # bits; zeros of 8-bit codes are whole there


class Linear(NamedTuple):
    """``DequantizeLinear(x, scales)`` along the last axis, and ``Add`` of a bias for each block.

    Attributes:
        x: codes, uint8, one each, shape ``(rows, columns)``; stored as UINT2, UINT4 or UINT8.
        bits: of that type.
        scales: float16 or float32, shape ``(rows, groups)``.
        biases: likewise, added to all of a block.
        block_size: columns in a block.
        error: of a value, in steps: 0, for codes, scales and biases are those of the weight.
    """

    x: Array
    bits: int
    scales: Array
    biases: Array
    block_size: int
    error: float = 0.0

    @property
    def raw(self) -> bytes:
        """The codes as a tensor of ONNX stores them: the first one in the lowest bits of a byte."""
        return packed(self.x, self.bits).tobytes()

    def blocks(self, scheme: Scheme) -> Blocks:
        """Return the weight that these are the constants of, by its SCHEME."""
        return Blocks.of_codes(self.x, {"scales": self.scales, "biases": self.biases}, scheme)


class MatMul(NamedTuple):
    """The inputs of ``com.microsoft.MatMulNBits`` for a weight.

    Attributes:
        b: codes, uint8, shape ``(rows, groups, bytes)``.
        scales: shape ``(rows, groups)``.
        zero_points: in the dtype of the scales; of 8-bit codes uint8.
        bits: of a code.
        block_size: columns in a block.
        error: the largest distance of a zero point from the weight's, in steps.
    """

    b: Array
    scales: Array
    zero_points: Array
    bits: int
    block_size: int
    error: float

    def values(self) -> NDArray[np.float64]:
        """Return ``scale * (code - zero)`` in float64, shape ``(rows, columns)``."""
        places = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes = self.b[..., None] >> places & np.uint8((1 << self.bits) - 1)
        codes = codes.reshape(*self.scales.shape, -1)
        apart = codes - self.zero_points.astype(np.float64)[..., None]
        worth = apart * self.scales.astype(np.float64)[..., None]
        found: NDArray[np.float64] = worth.reshape(len(self.scales), -1)
        return found


def linear(blocks: Blocks) -> Linear:
    """Return the constants of ``DequantizeLinear`` and ``Add`` for BLOCKS, rows of an affine weight.

    Raises:
        UnsupportedError: the weight is not affine.
    """
    _require_affine(blocks.scheme)
    scales, biases = _floats(blocks.parts)
    return Linear(
        blocks.codes(), HELD[blocks.scheme.bits], scales, biases, blocks.scheme.group_size
    )


def matmul(blocks: Blocks) -> MatMul:
    """Return the constants of ``MatMulNBits`` for BLOCKS, rows of an affine weight.

    Raises:
        UnsupportedError: it has no kernel for such codes, or a zero point cannot be stored.
    """
    scheme = blocks.scheme
    _require_affine(scheme)
    if scheme.bits not in MATMUL:
        raise UnsupportedError(f"MatMulNBits has codes of 2, 4 or 8 bits, not {scheme}")
    found = zeros_of(blocks)
    if scheme.bits > WIDEST_FLOAT_ZERO:
        zeros, error = whole(found.zeros, 255)
    else:
        dtype = _floats(blocks.parts)[0].dtype
        zeros = found.zeros.astype(dtype)
        error = float(np.abs(zeros.astype(np.float64) - found.zeros).max(initial=0.0))
    data = packed(found.codes, scheme.bits).reshape(*found.scales.shape, -1)
    scales = _wide(found.scales)
    return MatMul(data, scales, zeros, scheme.bits, scheme.group_size, error)


def packed(codes: Array, bits: int) -> Array:
    """Return CODES below ``2**bits``, several to a byte, the first one in its lowest bits.

    >>> packed(np.array([[1, 2]], np.uint8), 4).tolist()
    [[33]]
    """
    each = 8 // bits
    apart = codes.reshape(*codes.shape[:-1], -1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    found: Array = np.bitwise_or.reduce(apart, axis=-1).astype(np.uint8)
    return found


def _require_affine(scheme: Scheme) -> None:
    if not scheme.affine:
        raise UnsupportedError(f"ONNX has no linear codes for {scheme}; take a table of values")


def _floats(parts: Mapping[str, Array]) -> tuple[Array, Array]:
    return _wide(parts["scales"]), _wide(parts["biases"])


def _wide(array: Array) -> Array:
    """Return ARRAY in float16 or float32, which hold all numbers of its dtype."""
    return array if array.dtype == np.float16 else array.astype(np.float32)
