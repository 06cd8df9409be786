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


class Mask(NamedTuple):
    """What is added to the scores, and which queries attend to anything (1 or 0; ``None`` for all)."""

    added: mx.array
    alive: mx.array | None


def as_added(mask: mx.array, dtype: mx.Dtype) -> Mask:
    """Turn a mask, boolean or added, into one without rows that are minus infinity throughout."""
    if mask.dtype == mx.bool_:
        alive = mx.any(mask, axis=-1, keepdims=True)
        hidden = mx.logical_and(alive, mx.logical_not(mask))
        return Mask(mx.where(hidden, mx.array(-math.inf, dtype), mx.array(0, dtype)), alive)
    alive = mx.max(mask, axis=-1, keepdims=True) > -math.inf
    return Mask(mx.where(alive, mask, mx.array(0, dtype)).astype(dtype), alive)


def _causal(queries: int, keys: int, dtype: mx.Dtype) -> Mask:
    """Let each query see the keys up to its own number: the first at least, so none attends to nothing."""
    seen = mx.tril(mx.ones((queries, keys), mx.bool_))
    return Mask(mx.where(seen, mx.array(0, dtype), mx.array(-math.inf, dtype)), None)


def _grouped(x: mx.array, query: mx.array) -> mx.array:
    """Return X with a head for each of QUERY's, where it has fewer."""
    if x.ndim < 3 or x.shape[-3] in {1, query.shape[-3]}:
        return x
    return mx.repeat(x, query.shape[-3] // x.shape[-3], axis=-3)


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
    del enable_gqa  # said by the shapes
    if is_causal and _as_mlx_counts(query, key) and _fusible(query, key, value, dropout_p):
        return fused(query, key, value, _scale(query, scale), "causal")
    mask: Mask | None
    if is_causal:
        mask = _causal(query.shape[-2], key.shape[-2], query.dtype)
    else:
        mask = None if attn_mask is None else as_added(attn_mask, query.dtype)
    return attend(query, key, value, mask, dropout_p, scale)


def attend(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    mask: Mask | None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> mx.array:
    """Attend in one kernel where there is one for it, else in steps."""
    factor = _scale(query, scale)
    if _fusible(query, key, value, dropout_p):
        attended = fused(query, key, value, factor, None if mask is None else mask.added)
    else:
        key, value = (_grouped(x, query) for x in (key, value))
        attended = composed(query, key, value, factor, mask, dropout_p)
    if mask is None or mask.alive is None:
        return attended
    return attended * mask.alive.astype(attended.dtype)


def _scale(query: mx.array, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _as_mlx_counts(query: mx.array, key: mx.array) -> bool:
    """Tell whether the last query sees the last key, as MLX means causal; torch counts from the first."""
    return query.shape[-2] == key.shape[-2]


def _on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def _fusible(query: mx.array, key: mx.array, value: mx.array, dropout_p: float) -> bool:
    """Tell whether MLX's fused kernel applies and pays: on the CPU it has none."""
    if _on_cpu() or dropout_p or any(x.ndim != 4 for x in (query, key, value)):
        return False
    batches, heads = {len(x) for x in (query, key, value)}, {x.shape[1] for x in (key, value)}
    return len(batches) == len(heads) == 1 and query.shape[1] % heads.pop() == 0


def fused(
    query: mx.array, key: mx.array, value: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Attend in one kernel."""
    if isinstance(mask, mx.array) and mask.ndim < query.ndim:
        mask = mask.reshape(*[1] * (query.ndim - mask.ndim), *mask.shape)
    return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)


def composed(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float,
    mask: Mask | None,
    dropout: float = 0.0,
) -> mx.array:
    """Attend in steps."""
    scores = (query * scale) @ mx.swapaxes(key, -1, -2)
    weights = softmax(scores if mask is None else scores + mask.added)
    return (drop(weights, dropout)[0] if dropout else weights) @ value
