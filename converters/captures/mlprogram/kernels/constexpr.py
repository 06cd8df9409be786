"""Compressed constants made dense: affine, look-up tables, sparse, and these joined.

Sums and products are taken in float64 and rounded once to the dtype of the scale. Names of
arguments are MIL's; where iOS 16 and iOS 18 give one name to two forms, ``shape`` marks the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ....values import Array


def unpack(packed: Array, bits: int, count: int) -> Array:
    """Read COUNT unsigned integers of BITS each, least significant bit first.

    >>> unpack(np.array([0b10_01_11_00, 0b11], np.uint8), 2, 5).tolist()
    [0, 3, 1, 2, 3]
    """
    flags = np.unpackbits(packed.astype(np.uint8), bitorder="little")[: bits * count]
    return flags.reshape(count, bits) @ (1 << np.arange(bits))


def spread(parameter: Array, shape: tuple[int, ...]) -> Array:
    """Repeat PARAMETER so that it covers blocks of a tensor of SHAPE, in float64."""
    result = parameter.astype(np.float64)
    for axis, (size, blocks) in enumerate(zip(shape, parameter.shape, strict=True)):
        result = result.repeat(size // blocks, axis)
    return result


def shift_scale(data: Array, scale: Array, offset: Array | None) -> Array:
    """Return ``scale * (data - offset)``, one pair per block."""
    values = data.astype(np.float64)
    if offset is not None:
        values = values - spread(offset, data.shape)
    return (spread(scale, data.shape) * values).astype(scale.dtype)


def affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: int) -> Array:
    """Return ``scale * (data - zero_point)``, one pair or one per entry of AXIS (iOS 16)."""

    def along(parameter: Array) -> Array:
        shape = [1] * quantized_data.ndim
        shape[axis] = parameter.size
        return parameter.astype(np.float64).reshape(shape)

    values = quantized_data.astype(np.float64) - along(zero_point)
    return (along(scale) * values).astype(scale.dtype)


def densify(values: Array, mask: Array) -> Array:
    """Put VALUES where MASK is set and zeros elsewhere."""
    result = np.zeros(mask.shape, values.dtype)
    result[mask.astype(bool)] = values
    return result


def sparse_to_dense(nonzero_data: Array, mask: Array, shape: Array | None = None) -> Array:
    """Undo unstructured sparsity; an iOS 16 mask is packed and needs SHAPE."""
    if shape is not None:
        mask = unpack(mask, 1, int(np.prod(shape))).reshape(shape)
    return densify(nonzero_data, mask)


def look_up(indices: Array, lut: Array, vector_axis: int | None) -> Array:
    """Replace each index by its entry; entries may be vectors along VECTOR_AXIS (iOS 18)."""
    sizes = zip(indices.shape, lut.shape, strict=False)
    blocks = [np.arange(size) // (size // tables) for size, tables in sizes]
    values: Array = lut[(*np.ix_(*blocks), indices.astype(np.int64))]
    if lut.shape[-1] == 1 or vector_axis is None:
        scalars: Array = values[..., 0]
        return scalars
    axis = vector_axis % indices.ndim
    merged = [size * (lut.shape[-1] if i == axis else 1) for i, size in enumerate(indices.shape)]
    joined: Array = np.moveaxis(values, -1, axis + 1).reshape(merged)
    return joined


def lut_to_dense(
    indices: Array, lut: Array, vector_axis: int | None = None, shape: Array | None = None
) -> Array:
    """Undo palettization; iOS 16 indices are packed and need SHAPE."""
    if shape is None:
        return look_up(indices, lut, vector_axis)
    bits = lut.size.bit_length() - 1
    result: Array = lut[unpack(indices, bits, int(np.prod(shape)))].reshape(shape)
    return result


def lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: int | None = None
) -> tuple[Array, Array]:
    """Undo palettization of what is not zero; return the mask of the result and its values."""
    dense = look_up(densify(indices_nonzero_data, indices_mask), lut, vector_axis)
    mask = indices_mask
    if lut.shape[-1] > 1 and vector_axis is not None:
        mask = mask.repeat(lut.shape[-1], vector_axis)
    return mask, dense[mask.astype(bool)]


def sparse_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    """Undo quantization of what is not zero; return the mask and the values."""
    dense = shift_scale(densify(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask.astype(bool)]


def cast(source_val: Array, output_dtype: str) -> Array:  # noqa: ARG001  (MIL allows fp32 only)
    """Widen to float32."""
    return source_val.astype(np.float32)


def blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """Undo blockwise quantization (iOS 18); blocks are implied by the shapes."""
    return shift_scale(data, scale, offset)


CONSTEXPR: Final[Mapping[str, Callable[..., Any]]] = {
    "constexpr_affine_dequantize": affine_dequantize,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_cast": cast,
    "constexpr_lut_to_dense": lut_to_dense,
    "constexpr_lut_to_sparse": lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": sparse_shift_scale,
    "constexpr_sparse_to_dense": sparse_to_dense,
}


def expand(kind: str, inputs: Mapping[str, Any]) -> tuple[Array, ...]:
    """Return the outputs of the constexpr op KIND for INPUTS by MIL name."""
    outputs = CONSTEXPR[kind](**inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)
