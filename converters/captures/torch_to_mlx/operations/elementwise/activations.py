"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, cast

import mlx.core as mx

from ..axes import axis_of, per_channel
from ..gradients import spread, with_gradient, zero_where
from ..registry import operation, register
from .elementary import erf, exp, sigmoid, softplus, tanh

Pair = tuple[mx.array, mx.array]


def _activation(function: Callable[[mx.array], Pair]) -> Callable[[mx.array], mx.array]:
    """Make a handler of FUNCTION, which returns value and slope at x.

    The slope is computed again on the way back, so that only x is kept and each way is one kernel.
    16 bits are computed in float32 and rounded once, as in torch.
    """

    def wide(x: mx.array) -> mx.array:
        return x.astype(mx.float32) if x.dtype.size == 2 else x

    def back(g: mx.array, _: mx.array, x: mx.array) -> mx.array:
        # mx.compile would keep what both ways have in common: negated, they have nothing.
        return (g * function(-wide(-x))[1]).astype(x.dtype)

    custom = with_gradient(lambda x: function(wide(x))[0].astype(x.dtype), back)
    return lambda x: cast(mx.array, custom(x))


def _gelu_by_erf(x: mx.array) -> Pair:
    below = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    return x * below, below + x * exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_by_tanh(x: mx.array) -> Pair:
    factor = math.sqrt(2 / math.pi)
    curve = tanh(factor * (x + 0.044715 * x * x * x))
    slope = factor * (1 + 3 * 0.044715 * x * x)
    return 0.5 * x * (1 + curve), 0.5 * (1 + curve + x * (1 - curve * curve) * slope)


def _silu(x: mx.array) -> Pair:
    gate = sigmoid(x)
    return x * gate, gate * (1 + x * (1 - gate))


_GELU: Final = {"none": _activation(_gelu_by_erf), "tanh": _activation(_gelu_by_tanh)}

register(
    {
        "relu6": lambda x: mx.clip(x, 0, 6),
        "sigmoid": sigmoid,
        "silu": _activation(_silu),
        "mish": lambda x: x * tanh(softplus(x)),
        "tanh": tanh,
        "log_sigmoid": lambda x: -softplus(-x),
        "hardswish": lambda x: x * mx.clip(x + 3, 0, 6) / 6,
        "hardsigmoid": lambda x: mx.clip(x + 3, 0, 6) / 6,
    },
    promote="result",
    arity=1,
)
register(
    {
        "hardtanh": lambda self, min_val=-1, max_val=1: mx.clip(self, min_val, max_val),
        "leaky_relu": lambda self, negative_slope=0.01: mx.where(
            self > 0, self, self * negative_slope
        ),
        "threshold": lambda self, threshold, value: mx.where(self > threshold, self, value),
        "hardshrink": lambda self, lambd=0.5: mx.where(mx.abs(self) > lambd, self, 0.0),
        "softshrink": lambda self, lambd=0.5: self - mx.clip(self, -lambd, lambd),
    }
)


@operation("gelu")
def _gelu(self: mx.array, approximate: str = "none") -> mx.array:
    """Hendrycks and Gimpel 2016: x Phi(x), or its tanh approximation."""
    return _GELU[approximate](self)


@operation("elu")
def _elu(self: mx.array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> mx.array:
    negative = mx.expm1(zero_where(self > 0, self) * input_scale)
    return scale * mx.where(self > 0, self, alpha * negative)


@operation("softplus")
def _softplus(self: mx.array, beta: float = 1, threshold: float = 20) -> mx.array:
    scaled = self * beta
    return mx.where(scaled > threshold, self, softplus(scaled) / beta)


@operation("glu")
def _glu(self: mx.array, dim: int = -1) -> mx.array:
    value, gate = mx.split(self, 2, axis=axis_of(self, dim))
    return value * sigmoid(gate)


@operation("prelu")
def _prelu(self: mx.array, weight: mx.array) -> mx.array:
    single = weight.size == 1
    slope = weight.reshape([1] * self.ndim) if single else per_channel(weight, self.ndim)
    below = zero_where(self > 0, self)  # of which infinity leaves the slope a gradient of 0
    return mx.where(self > 0, self, below * spread(slope, self.shape))
