"""Dtypes and arrays between torch and MLX, bit for bit where MLX has the dtype."""

from __future__ import annotations

from typing import Final

import mlx.core as mx
import numpy as np
import torch

# MLX has no float64 on GPUs and no complex128: double precision becomes single.
MLX: Final[dict[torch.dtype, mx.Dtype]] = {
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
    torch.float64: mx.float32,
    torch.complex64: mx.complex64,
    torch.complex128: mx.complex64,
}
_NARROWED: Final = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """Return a copy of TENSOR in MLX.

    >>> to_mlx(torch.tensor([1.5], dtype=torch.bfloat16))
    array([1.5], dtype=bfloat16)
    """
    tensor = tensor.detach().cpu().contiguous()
    tensor = tensor.to(_NARROWED.get(tensor.dtype, tensor.dtype))
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


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


def cast(value: mx.array, dtype: mx.Dtype | None) -> mx.array:
    """Return VALUE as DTYPE; anything but an array comes back as it is."""
    if dtype is None or not isinstance(value, mx.array) or value.dtype == dtype:
        return value
    return value.astype(dtype)


def is_float(array: mx.array) -> bool:
    """Tell whether ARRAY holds floating-point or complex numbers."""
    return bool(mx.issubdtype(array.dtype, mx.inexact))
