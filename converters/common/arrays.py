"""Arrays between numpy and the frameworks, bfloat16 included; each is imported when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import mlx.core as mx
    import torch

Array = np.ndarray[Any, np.dtype[Any]]


def same_bits(one: Array, other: Array) -> bool:
    """Say whether two arrays are alike to the bit, dtype and shape included."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def unmasked(array: Array, mask: Array | None) -> Array:
    """Return what MASK, of shape (batch, sequence), lets count of ARRAY; of other arrays all.

    >>> unmasked(np.arange(6).reshape(2, 3), np.array([[1, 1, 0], [1, 0, 0]])).tolist()
    [0, 1, 3]
    """
    if mask is None or array.ndim < 2 or array.shape[: mask.ndim] != mask.shape:
        return array
    return np.asarray(array[mask != 0])


def to_torch(array: Array) -> torch.Tensor:
    """Return a copy of ARRAY as a tensor.

    >>> to_torch(np.zeros((2, 3), np.float32)).shape
    torch.Size([2, 3])
    """
    import torch

    array = np.array(array, order="C")  # a copy: tensors may be written to
    if array.dtype == ml_dtypes.bfloat16:
        # Through float32, which loses nothing: under a mode that widens dtypes, such as the float64
        # reference's, a reinterpretation of the bits would read others.
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    if array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def from_torch(tensor: torch.Tensor) -> Array:
    """Return TENSOR as an array.

    >>> import torch
    >>> from_torch(torch.ones(2, dtype=torch.bfloat16)).dtype.name
    'bfloat16'
    """
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def to_mlx(array: Array) -> mx.array:
    """Return ARRAY in MLX; float64 stays float64 (CPU only)."""
    import mlx.core as mx

    array = np.ascontiguousarray(array).reshape(array.shape)  # which makes a scalar a vector
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array, dtype=mx.float64) if array.dtype == np.float64 else mx.array(array)


def from_mlx(array: mx.array) -> Array:
    """Return an MLX ARRAY in numpy."""
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)
