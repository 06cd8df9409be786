"""Arrays between numpy and MLX, bit for bit; MLX has no type for float8, which is uint8 there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...common.dtypes import CODE, dtype_of
from ...values import Array

UNSIGNED: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
BYTES_IN_MLX: Final = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"})
IN_MLX: Final = {"bool": "bool_"}  # where MLX calls a dtype otherwise than numpy does


def mlx_dtype(name: str) -> Any:
    """Return MLX's dtype for the numpy or ml_dtypes NAME.

    >>> mlx_dtype("bfloat16"), mlx_dtype("float8_e4m3fn")
    (mlx.core.bfloat16, mlx.core.uint8)
    """
    import mlx.core as mx

    return getattr(mx, "uint8" if name in BYTES_IN_MLX else IN_MLX.get(name, name))


def numpy_name(dtype: Any) -> str:
    """Return the numpy name of an MLX DTYPE.

    >>> import mlx.core as mx
    >>> numpy_name(mx.bfloat16), numpy_name(mx.bool_)
    ('bfloat16', 'bool')
    """
    return str(dtype).rpartition(".")[2].removesuffix("_")


def to_mlx(array: Array) -> Any:
    """Return ARRAY as an MLX array of the same bits and shape.

    >>> to_mlx(np.array([1.5, -0.0], np.float64)).dtype
    mlx.core.float64
    """
    import mlx.core as mx

    if array.dtype.kind == "c":
        return mx.array(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = mx.array(flat.view(UNSIGNED[array.dtype.itemsize]))
    return bits.view(mlx_dtype(array.dtype.name)).reshape(array.shape)


def to_numpy(array: Any) -> Array:
    """Return the MLX ARRAY as a numpy array of the same bits and shape.

    >>> import mlx.core as mx
    >>> to_numpy(mx.array([[1, 2]], dtype=mx.bfloat16)).dtype
    dtype(bfloat16)
    """
    import mlx.core as mx

    dtype = dtype_of(numpy_name(array.dtype))
    if dtype.kind == "c":
        return np.array(array)
    unsigned = mlx_dtype(np.dtype(UNSIGNED[dtype.itemsize]).name)
    flat = mx.contiguous(array.reshape(-1)).view(unsigned)
    return np.array(flat).view(dtype).reshape(tuple(array.shape))


def code(dtype: Any) -> str:
    """Return the safetensors code of an MLX DTYPE."""
    return CODE[dtype_of(numpy_name(dtype))]
