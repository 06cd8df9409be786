"""ONNX's constants for a quantized weight: ``DequantizeLinear`` in blocks, and ``MatMulNBits``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import UnsupportedError
from ...values import Array
from .. import Blocks, Scheme

# Bits of codes -> bits of the type that holds them.
HELD: Final = {2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}


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
    """The inputs of ``com.microsoft.MatMulNBits`` for a weight, and what is added to its blocks.

    Attributes:
        codes: uint8, one each, shape ``(rows, columns)``.
        scales: float16 or float32, shape ``(rows, groups)``.
        zeros: codes that are worth zero, uint8, shape ``(rows, groups)``: the nearest to the biases.
        rest: what these miss of the biases, float32, shape ``(rows, groups)``.
        bits: of a code as it is stored.
        block_size: columns in a block.
        error: the largest distance of a value from the weight's, in steps: 0 but for scales in float32.
    """

    codes: Array
    scales: Array
    zeros: Array
    rest: Array
    bits: int
    block_size: int
    error: float

    def values(self) -> NDArray[np.float64]:
        """Return ``scale * (code - zero) + rest`` in float64, shape ``(rows, columns)``."""
        zeros, scales, rest = (
            it.astype(np.float64)[..., None] for it in (self.zeros, self.scales, self.rest)
        )
        grouped = self.codes.reshape(*self.scales.shape, -1)
        found: NDArray[np.float64] = ((grouped - zeros) * scales + rest).reshape(self.codes.shape)
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
    """Return the constants of ``MatMulNBits`` for BLOCKS, rows of an affine weight, its own codes and scales.

    Raises:
        UnsupportedError: the weight is not affine.
    """
    scheme = blocks.scheme
    _require_affine(scheme)
    bits, (scales, biases) = max(4, HELD[scheme.bits]), _floats(blocks.parts)
    wide, wanted = scales.astype(np.float64), biases.astype(np.float64)
    zeros = np.divide(-wanted, wide, out=np.zeros_like(wide), where=wide != 0)
    zeros = np.clip(np.rint(zeros), 0, (1 << bits) - 1)
    missing = wanted + zeros * wide
    rest = missing.astype(np.float32)
    steps = np.abs(np.where(wide == 0, 1, wide))
    error = float(np.max(np.abs(rest - missing) / steps, initial=0.0))
    whole = zeros.astype(np.uint8)
    return MatMul(blocks.codes(), scales, whole, rest, bits, scheme.group_size, error)


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
