"""Activation functions."""

from __future__ import annotations

import math

import mlx.core as mx

from ..axes import axis_of, per_channel
from ..gradients import zero_where
from ..registry import operation, register
from .elementary import erf, sigmoid, softplus, tanh

# Klambauer et al. 2017, equation 14: the fixed point of SELU.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


register(
    {
        "relu6": lambda x: mx.clip(x, 0, 6),
        "sigmoid": sigmoid,
        "silu": lambda x: x * sigmoid(x),
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
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (self + 0.044715 * self * self * self)
        return 0.5 * self * (1 + tanh(inner))
    return 0.5 * self * (1 + erf(self * math.sqrt(0.5)))


@operation("elu")
def _elu(self: mx.array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> mx.array:
    negative = mx.expm1(zero_where(self > 0, self) * input_scale)
    return scale * mx.where(self > 0, self, alpha * negative)


@operation("celu")
def _celu(self: mx.array, alpha: float = 1.0) -> mx.array:
    return _elu(self, alpha, 1, 1 / alpha)


@operation("selu")
def _selu(self: mx.array) -> mx.array:
    return _elu(self, _SELU_ALPHA, _SELU_SCALE)


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
    slope = weight if weight.size == 1 else per_channel(weight, self.ndim)
    return mx.where(self > 0, self, self * slope)


@operation("logit", promote="result")
def _logit(self: mx.array, eps: float | None = None) -> mx.array:
    x = self if eps is None else mx.clip(self, eps, 1 - eps)
    return mx.log(x / (1 - x))
