"""Scaled dot-product attention (Vaswani et al. 2017, equation 1).

A query that may attend to nothing, as left padding makes, gives 0 and sends no gradient, as in torch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from ..elementwise.elementary import softmax
from ..elementwise.randomness import drop
from ..registry import operation


class _Mask(NamedTuple):
    """What is added to the scores, and which queries attend to anything (1 or 0)."""

    added: mx.array
    alive: mx.array


def _as_added(mask: mx.array, dtype: mx.Dtype) -> _Mask:
    """Turn a mask, boolean or added, into one without rows that are minus infinity throughout."""
    if mask.dtype == mx.bool_:
        alive = mx.any(mask, axis=-1, keepdims=True)
        hidden = mx.logical_and(alive, mx.logical_not(mask))
        return _Mask(mx.where(hidden, mx.array(-math.inf, dtype), mx.array(0, dtype)), alive)
    alive = mx.max(mask, axis=-1, keepdims=True) > -math.inf
    return _Mask(mx.where(alive, mask, mx.array(0, dtype)).astype(dtype), alive)


def _causal(queries: int, keys: int) -> mx.array:
    return mx.tril(mx.ones((queries, keys), mx.bool_))


def _grouped(x: mx.array, heads: int) -> mx.array:
    return mx.repeat(x, heads // x.shape[-3], axis=-3) if x.shape[-3] != heads else x


@operation("scaled_dot_product_attention")
def _attention(  # noqa: PLR0913, PLR0917 - the schema's
    query: mx.array,
    key: mx.array,
    value: mx.array,
    attn_mask: mx.array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> mx.array:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if is_causal:
        attn_mask = _causal(query.shape[-2], key.shape[-2])
    if enable_gqa:
        key, value = (_grouped(x, query.shape[-3]) for x in (key, value))
    mask = None if attn_mask is None else _as_added(attn_mask, query.dtype)
    if _fusible(query, key, value) and not dropout_p:
        attended = fused(query, key, value, scale, mask)
    else:
        attended = composed(query, key, value, scale, mask, dropout_p)
    return attended if mask is None else attended * mask.alive.astype(attended.dtype)


def _on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def _fusible(*arrays: mx.array) -> bool:
    """Tell whether MLX's fused kernel applies and pays: on the CPU it has none."""
    return not _on_cpu() and all(x.ndim == 4 and x.shape[:2] == arrays[0].shape[:2] for x in arrays)


def fused(
    query: mx.array, key: mx.array, value: mx.array, scale: float, mask: _Mask | None
) -> mx.array:
    """Attend in one kernel."""
    added = None if mask is None else mask.added
    if added is not None and added.ndim < query.ndim:
        added = added.reshape(*[1] * (query.ndim - added.ndim), *added.shape)
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=added)


def composed(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float,
    mask: _Mask | None,
    dropout: float = 0.0,
) -> mx.array:
    """Attend in steps."""
    scores = (query * scale) @ mx.swapaxes(key, -1, -2)
    weights = softmax(scores if mask is None else scores + mask.added)
    return (drop(weights, dropout)[0] if dropout else weights) @ value
