"""Kernels of linear algebra and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .kernel import Function


def alike(*operands: Tensor) -> tuple[Tensor, ...]:
    """Widen integers where another operand is of floats, which iOS 17 allows."""
    floating = any(operand.is_floating_point() for operand in operands)
    return tuple(operand.float() for operand in operands) if floating else operands


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``; the weight is (out, in)."""
    return F.linear(*alike(x, weight, *([] if bias is None else [bias])))


def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """Multiply matrices in the last two axes, each transposed first if asked."""
    x = x.transpose(-1, -2) if transpose_x and x.dim() > 1 else x
    y = y.transpose(-1, -2) if transpose_y and y.dim() > 1 else y
    return torch.matmul(*alike(x, y))


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Return ``softmax(q k^T / sqrt(d) + mask) v`` (Vaswani et al. 2017, section 3.2.1)."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, -1) @ value


KERNELS: Final[Mapping[str, Function]] = {
    "einsum": lambda values, equation: torch.einsum(equation, *values),
    "linear": linear,
    "matmul": matmul,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "softmax": lambda x, axis=-1: torch.softmax(x, axis),
}
