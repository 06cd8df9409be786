"""Dtypes of MLX in torch: unsigned integers, with which torch computes little, are wider there."""

from __future__ import annotations

from typing import Final

import torch

TORCH: Final = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
}
FLOATS: Final = ("float16", "bfloat16", "float32")
LARGEST: Final = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}  # what arithmetic wraps around at
WRAPPING: Final = {  # operations whose results may not fit
    *(
        "Add",
        "Subtract",
        "Multiply",
        "Negative",
        "Power",
        "BitwiseBinary",
        "AsType",
        "Reduce",
        "Scan",
    ),
}
_WIDER: Final = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return TENSOR, unsigned integers in the dtype that torch computes with.

    >>> widened(torch.tensor([3], dtype=torch.uint32)).dtype
    torch.int64
    """
    return tensor.to(_WIDER[tensor.dtype]) if tensor.dtype in _WIDER else tensor


def accurate(x: torch.Tensor) -> torch.dtype:
    """Return the dtype for what is computed beside X with care: float32, or wider if X is."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
