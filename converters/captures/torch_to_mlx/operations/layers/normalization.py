"""Normalization over features, groups or batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..axes import from_last, to_last
from ..registry import operation, register

Optional = mx.array | None


@operation("layer_norm")
def _layer_norm(
    input_: mx.array,
    normalized_shape: Sequence[int],
    weight: Optional = None,
    bias: Optional = None,
    eps: float = 1e-5,
) -> mx.array:
    """Ba et al. 2016, equation 4; several axes are normalized as one."""
    if len(normalized_shape) == 1:
        return mx.fast.layer_norm(input_, weight, bias, eps)
    lead = input_.shape[: input_.ndim - len(normalized_shape)]
    scale, shift = (None if p is None else p.reshape(-1) for p in (weight, bias))
    features = input_.reshape(*lead, math.prod(normalized_shape))
    return mx.fast.layer_norm(features, scale, shift, eps).reshape(input_.shape)


@operation("rms_norm")
def _rms_norm(
    input_: mx.array,
    normalized_shape: Sequence[int],
    weight: Optional = None,
    eps: float | None = None,
) -> mx.array:
    """Zhang and Sennrich 2019, equation 4."""
    eps = mx.finfo(input_.dtype).eps if eps is None else eps
    if len(normalized_shape) == 1:
        return mx.fast.rms_norm(input_, weight, eps)
    axes = list(range(-len(normalized_shape), 0))
    normal = input_ * mx.rsqrt(mx.mean(input_ * input_, axis=axes, keepdims=True) + eps)
    return normal if weight is None else normal * weight


def _wide(x: mx.array) -> mx.array:
    """Return X in float32 where it is narrower: torch rounds a norm's output once."""
    return x.astype(mx.float32) if x.dtype.size < mx.float32.size else x


@operation("group_norm")
def _group_norm(
    input_: mx.array,
    num_groups: int,
    weight: Optional = None,
    bias: Optional = None,
    eps: float = 1e-5,
    last: bool = False,
) -> mx.array:
    """Wu and He 2018, equation 1; channels last, as convolutions leave them in memory."""
    if not input_.size:
        return input_
    x = _wide(to_last(input_, last))
    batch, channels = len(x), x.shape[-1]
    flat = x.reshape(batch, -1, channels)
    grouped, each_channel = (batch, num_groups, channels // num_groups), (batch, 1, channels)
    share = num_groups * batch / x.size

    def averaged(values: mx.array) -> mx.array:
        """Average all places, shape ``(batch, places, channels)``, within each group."""
        groups = values.sum(1, True).reshape(grouped).sum(-1, True) * share
        return mx.broadcast_to(groups, grouped).reshape(each_channel)

    centred = flat - averaged(flat)
    scale = mx.rsqrt(averaged(centred * centred) + eps)
    normal = centred * (scale if weight is None else scale * weight)
    normal = normal if bias is None else normal + bias
    return from_last(normal.reshape(x.shape).astype(input_.dtype), last)


class Statistics(NamedTuple):
    """Mean and variance per channel; absent where none are kept."""

    mean: Optional
    variance: Optional


class BatchNorm(NamedTuple):
    """What a batch normalization gives: its output, the batch's statistics, the new running ones.

    The deviation is 1 / sqrt(variance + eps); before it is applied, the output is the input centred.
    """

    output: mx.array
    mean: mx.array
    deviation: mx.array
    running_mean: Optional
    running_variance: Optional


def _trained(x: mx.array, running: Statistics, momentum: float, eps: float) -> BatchNorm:
    """Ioffe and Szegedy 2015, algorithm 1; the running variance is the unbiased one."""
    axes, channels = list(range(x.ndim - 1)), x.shape[-1]
    mean = mx.mean(x, axis=axes)
    centred = x - mean
    variance = mx.mean(centred * centred, axis=axes)
    count = x.size // channels
    unbiased = variance * (count / max(count - 1, 1))
    updated = [
        None if old is None else (1 - momentum) * old + momentum * mx.stop_gradient(new)
        for old, new in zip(running, (mean, unbiased), strict=True)
    ]
    return BatchNorm(centred, mean, mx.rsqrt(variance + eps), *updated)


def _evaluated(x: mx.array, running: Statistics, eps: float) -> BatchNorm:
    """Ioffe and Szegedy 2015, algorithm 2: the running statistics are constants."""
    mean, variance = running
    if mean is None or variance is None:
        return _trained(x, running, 0.0, eps)
    deviation = mx.rsqrt(_wide(variance) + eps)
    return BatchNorm(x - mean, mean, deviation, mean, variance)


def _batch_norm(
    input_: mx.array,
    eps: float,
    momentum: float = 0.0,
    training: bool = False,
    last: bool = False,
    **tensors: Optional,
) -> BatchNorm:
    """Normalize by the batch's statistics in training, else by the running ones.

    Channels are moved to the end, where convolutions leave them in memory: nothing is copied.
    """
    running = Statistics(tensors.get("running_mean"), tensors.get("running_var"))
    moved = _wide(to_last(input_, last))
    if training:
        normal = _trained(moved, running, momentum, eps)
    else:
        normal = _evaluated(moved, running, eps)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    output = normal.output * (normal.deviation if weight is None else normal.deviation * weight)
    output = (output if bias is None else output + bias).astype(input_.dtype)
    return normal._replace(output=from_last(output, last))


@operation("instance_norm")
def _instance_norm(input_: mx.array, use_input_stats: bool, eps: float, **tensors: Any) -> mx.array:
    """Normalize every example by itself: groups of one channel."""
    if not use_input_stats:
        return _batch_norm(input_, eps, **tensors).output
    return _group_norm(input_, input_.shape[1], tensors.get("weight"), tensors.get("bias"), eps)


register(
    {
        "_native_batch_norm_legit_functional": _batch_norm,
        # the CPU's keeps no statistics then, and gives two empty vectors
        "_native_batch_norm_legit_no_training": lambda input_, **options: (
            _batch_norm(input_, **options)[0],
            *[mx.zeros(0, input_.dtype)] * 2,
        ),
        "_native_batch_norm_legit.no_stats": lambda input_, **options: _batch_norm(
            input_, **options
        )[:3],
        "batch_norm": lambda input_, **options: _batch_norm(input_, **options)[0],
    }
)


@operation("_weight_norm")
def _weight_norm(v: mx.array, g: mx.array, dim: int = 0) -> mx.array:
    """Salimans and Kingma 2016, equation 2; torch takes -1 for no axis that is kept, not for the last."""
    axes = [axis for axis in range(v.ndim) if dim == -1 or axis != dim % v.ndim]
    wide = _wide(v)
    normal = wide * (g / mx.sqrt(mx.sum(wide * wide, axis=axes, keepdims=True)))
    return normal.astype(v.dtype)
