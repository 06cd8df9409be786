"""What ``mx.fast`` has: norms, rotary positions, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from ..dtypes import accurate
from .registry import Call, primitive, training


def given(arrays: Sequence[Tensor], there: Sequence[bool]) -> list[Tensor | None]:
    """Return ARRAYS in their places, ``None`` where one is not THERE."""
    rest = iter(arrays)
    return [next(rest) if it else None for it in there]


def _wide(x: Tensor, call: Call) -> Tensor:
    """Return X in the dtype of the result, which is that of weights where these are wider."""
    return x.to(call.dtypes[0])


@primitive("RMSNorm")
def _rms_norm(call: Call) -> Tensor:
    eps, *there = call.arguments
    x, *arrays = call.inputs
    (weight,) = given(arrays, there)
    return F.rms_norm(_wide(x, call), (x.shape[-1],), weight, eps)


@primitive("LayerNorm")
def _layer_norm(call: Call) -> Tensor:
    eps, *there = call.arguments
    x, *arrays = call.inputs
    weight, bias = given(arrays, there)
    return F.layer_norm(_wide(x, call), (x.shape[-1],), weight, bias, eps)


@primitive("RoPE")
def _rope(call: Call) -> Tensor:
    """Turn pairs of the first elements of each head by angles that grow with the position."""
    dims, traditional, scale, start, *there = call.arguments
    x, speeds, *arrays = call.inputs
    (offset,) = given(arrays, there)
    places = torch.arange(x.shape[-2], dtype=accurate(x), device=x.device)
    moved = places + (start if offset is None else offset.reshape(-1, *[1] * (x.ndim - 2)))
    angles = (moved * scale)[..., None] * speeds
    return torch.cat([_turned(x[..., :dims], angles, traditional).to(x.dtype), x[..., dims:]], -1)


def _turned(x: Tensor, angles: Tensor, traditional: bool) -> Tensor:
    cos, sin = torch.cos(angles), torch.sin(angles)
    if traditional:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@primitive("Attention")
def _attention(call: Call) -> Tensor:
    q, k, v, *masks = call.inputs
    scale, causal = call.arguments
    mask = masks[0] if masks else None
    if mask is not None and mask.dtype == torch.bool and training():
        q, mask = _all_seen_instead_of_none(q, mask)
    if causal and not _same(q.shape[-2], k.shape[-2]):
        mask, causal = _lower(q, k), False
    k, v = _repeated(k, q), _repeated(v, q)
    mask = None if mask is None else _additive(mask, q)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _lower(q: Tensor, k: Tensor) -> Tensor:
    """Return which keys a query sees where the last of both belong together."""
    rows = torch.arange(q.shape[-2], device=q.device) + (k.shape[-2] - q.shape[-2])
    return rows[:, None] >= torch.arange(k.shape[-2], device=q.device)


def _all_seen_instead_of_none(q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give queries that see nothing the mean of all values, as MLX does, with its gradient.

    With numbers as large as ``_additive`` adds, torch's gradient would be that of a sum.
    """
    seen = mask.any(-1, keepdim=True)
    return torch.where(seen, q, 0), mask | ~seen


def _additive(mask: Tensor, q: Tensor) -> Tensor:
    """Return MASK as numbers to add: a row that sees nothing is a mean in MLX, not zero as in torch."""
    if mask.ndim == 1:
        mask = mask[None]
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    lowest = torch.finfo(q.dtype).min
    return (1 - mask.to(q.dtype)) * lowest


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """Return the heads of X, each as often as Q has heads for it."""
    times = q.shape[1] // x.shape[1]
    if times == 1:
        return x
    wide = x[:, :, None].expand(-1, -1, times, -1, -1)
    return wide.reshape(x.shape[0], q.shape[1], *x.shape[2:])
