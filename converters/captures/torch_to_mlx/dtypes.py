"""Dtypes and arrays between torch and MLX, bit for bit where MLX has the dtype."""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
import numpy as np
import torch

_MLX: Final[dict[torch.dtype, mx.Dtype]] = {
    torch.bool: mx.bool_,
    torch.uint8: mx.uint8,
    torch.int8: mx.int8,
    torch.int16: mx.int16,
    torch.uint16: mx.uint16,
    torch.int32: mx.int32,
    torch.uint32: mx.uint32,
    torch.int64: mx.int64,
    torch.uint64: mx.uint64,
    torch.float16: mx.float16,
    torch.bfloat16: mx.bfloat16,
    torch.float32: mx.float32,
    torch.float64: mx.float64,
    torch.complex64: mx.complex64,
    torch.complex128: mx.complex64,
}
# Complex numbers that MLX cannot hold as they are.
ABSENT: Final = frozenset({torch.complex32, torch.complex128})


def mlx_dtype(dtype: torch.dtype) -> mx.Dtype:
    """Return torch's DTYPE in MLX, which has no complex128, and float64 only on the CPU.

    There, too, MLX's exp, erf and the like are good to float32 only.

    >>> mlx_dtype(torch.bfloat16), mlx_dtype(torch.int64)
    (mlx.core.bfloat16, mlx.core.int64)
    """
    if dtype == torch.float64 and mx.default_device().type != mx.DeviceType.cpu:
        return mx.float32
    return _MLX[dtype]


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """Return a copy of TENSOR in MLX.

    >>> to_mlx(torch.tensor([1.5], dtype=torch.bfloat16))
    array([1.5], dtype=bfloat16)
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy(), dtype=mlx_dtype(tensor.dtype))


def to_torch(array: mx.array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a copy of ARRAY in torch, as DTYPE if one is given.

    >>> to_torch(mx.array([1.5], mx.bfloat16))
    tensor([1.5000], dtype=torch.bfloat16)
    """
    if array.dtype == mx.bfloat16:
        bits = np.array(array.view(mx.int16))
        tensor = torch.from_numpy(bits).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(np.array(array))
    return tensor if dtype is None else tensor.to(dtype)


def cast(value: Any, dtype: mx.Dtype | None) -> Any:
    """Return VALUE as DTYPE; anything but an array comes back as it is."""
    if isinstance(value, mx.array) and dtype is not None and value.dtype != dtype:
        return value.astype(dtype)
    return value


def is_float(array: mx.array) -> bool:
    """Tell whether ARRAY holds floating-point or complex numbers."""
    return bool(mx.issubdtype(array.dtype, mx.inexact))
