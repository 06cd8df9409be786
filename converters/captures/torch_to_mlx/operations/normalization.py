"""Normalization over features, groups or batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from .axes import per_channel
from .registry import operation, register

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
    flat = [None if p is None else p.reshape(-1) for p in (weight, bias)]
    features = input_.reshape(*lead, math.prod(normalized_shape))
    return mx.fast.layer_norm(features, *flat, eps).reshape(input_.shape)


@operation("native_layer_norm")
def _native_layer_norm(
    input_: mx.array,
    normalized_shape: Sequence[int],
    weight: Optional,
    bias: Optional,
    eps: float,
) -> tuple[mx.array, mx.array, mx.array]:
    axes = list(range(-len(normalized_shape), 0))
    deviation = mx.rsqrt(mx.var(input_, axis=axes, keepdims=True) + eps)
    normal = _layer_norm(input_, normalized_shape, weight, bias, eps)
    return normal, mx.mean(input_, axis=axes, keepdims=True), deviation


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


def _affine(x: mx.array, weight: Optional, bias: Optional) -> mx.array:
    x = x if weight is None else x * per_channel(weight, x.ndim)
    return x if bias is None else x + per_channel(bias, x.ndim)


@operation("group_norm")
def _group_norm(
    input_: mx.array,
    num_groups: int,
    weight: Optional = None,
    bias: Optional = None,
    eps: float = 1e-5,
) -> mx.array:
    """Wu and He 2018, equation 1."""
    groups = input_.reshape(input_.shape[0], num_groups, -1)
    normal = mx.fast.layer_norm(groups, None, None, eps).reshape(input_.shape)
    return _affine(normal, weight, bias)


@operation("instance_norm")
def _instance_norm(
    input_: mx.array,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    use_input_stats: bool,
    eps: float,
    momentum: float,  # noqa: ARG001 - running statistics are not updated here
) -> mx.array:
    if not use_input_stats:
        return _affine(_standardized(input_, running_mean, running_var, eps), weight, bias)
    return _group_norm(input_, input_.shape[1], weight, bias, eps)


class BatchNorm(NamedTuple):
    """What a batch normalization gives: its output, the batch's statistics, the new running ones."""

    output: mx.array
    mean: mx.array
    deviation: mx.array
    running_mean: Optional
    running_var: Optional


def _standardized(x: mx.array, mean: mx.array, variance: mx.array, eps: float) -> mx.array:
    deviation = mx.rsqrt(variance + eps)
    return (x - per_channel(mean, x.ndim)) * per_channel(deviation, x.ndim)


def _evaluated(
    input_: mx.array,
    weight: Optional,
    bias: Optional,
    running_mean: mx.array,
    running_var: mx.array,
    eps: float,
) -> mx.array:
    """Ioffe and Szegedy 2015, algorithm 2: the running statistics are constants."""
    return _affine(_standardized(input_, running_mean, running_var, eps), weight, bias)


def _trained(
    input_: mx.array,
    weight: Optional,
    bias: Optional,
    running: tuple[Optional, Optional],
    momentum: float,
    eps: float,
) -> BatchNorm:
    """Ioffe and Szegedy 2015, algorithm 1; the running variance is the unbiased one."""
    axes = [0, *range(2, input_.ndim)]
    mean, variance = mx.mean(input_, axis=axes), mx.var(input_, axis=axes)
    count = input_.size // input_.shape[1]
    unbiased = variance * (count / max(count - 1, 1))
    updated = [
        None if old is None else (1 - momentum) * old + momentum * mx.stop_gradient(new)
        for old, new in zip(running, (mean, unbiased), strict=True)
    ]
    output = _affine(_standardized(input_, mean, variance, eps), weight, bias)
    return BatchNorm(output, mean, mx.rsqrt(variance + eps), *updated)


def _functional(
    input_: mx.array,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> BatchNorm:
    if training:
        return _trained(input_, weight, bias, (running_mean, running_var), momentum, eps)
    output = _evaluated(input_, weight, bias, running_mean, running_var, eps)
    deviation = mx.rsqrt(running_var + eps)
    return BatchNorm(output, running_mean, deviation, running_mean, running_var)


register(
    {
        "_native_batch_norm_legit_functional": _functional,
        "_native_batch_norm_legit_no_training": lambda momentum, **inputs: _functional(
            **inputs, momentum=momentum, training=False
        )[:3],
        "_native_batch_norm_legit.no_stats": lambda **inputs: _functional(
            **inputs, running_mean=None, running_var=None
        )[:3],
        "batch_norm": lambda **inputs: _functional(**inputs)[0],
    }
)


@operation("_weight_norm")
def _weight_norm(v: mx.array, g: mx.array, dim: int = 0) -> mx.array:
    """Salimans and Kingma 2016, equation 2."""
    axes = [axis for axis in range(v.ndim) if axis != dim % v.ndim]
    return v * (g / mx.sqrt(mx.sum(v * v, axis=axes, keepdims=True)))
