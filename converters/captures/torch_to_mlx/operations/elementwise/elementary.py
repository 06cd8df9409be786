"""Exponential, error function and the like; on the CPU from sums and products alone.

MLX's own CPU kernels take 12 ns (exp), 17 ns (tanh, sigmoid) and 25 ns (erf) an element on x86, and its
exp is only good to 4e-6. Sums and products are vectorised: the same functions built from them are
3 to 7 times as fast and good to the last two bits. Other devices and dtypes use MLX's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Final, cast

import mlx.core as mx

from ..gradients import Custom

# erf(x) = x P(x^2) / Q(x^2) on [-4, 4]; coefficients of Eigen's erf for float32, highest power first.
_ERF_P: Final = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q: Final = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
# exp(f) = 1 + f + f^2 P(f) on [-ln(2)/2, ln(2)/2]; coefficients of Cephes' expf.
_EXP_P: Final = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
# tanh(x) = x P(x^2) / Q(x^2) on [-7.905, 7.905], where float32 reaches 1; coefficients of Eigen's tanh.
_TANH_P: Final = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_Q: Final = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
_TANH_RANGE: Final = (-7.90531110763549805, 7.90531110763549805)
_LN2: Final = (0.693359375, -2.12194440e-4)  # in two parts: n * the first is exact
_EXP_RANGE: Final = (
    -88.0,
    88.5,
)  # round to 2^-127 and 2^128, whose bits are those of 0 and infinity


def _vectorised(x: mx.array) -> bool:
    return x.dtype == mx.float32 and mx.default_device().type == mx.DeviceType.cpu


def _polynomial(coefficients: Sequence[float], x: mx.array) -> mx.array:
    return reduce(
        lambda sum_, c: sum_ * x + c, coefficients[2:], x * coefficients[0] + coefficients[1]
    )


@Custom
def _exp(x: mx.array) -> mx.array:
    bounded = mx.clip(x, *_EXP_RANGE)
    power = mx.round(bounded * math.log2(math.e))
    rest = bounded - power * _LN2[0] - power * _LN2[1]
    mantissa = _polynomial(_EXP_P, rest) * rest * rest + rest + 1
    return mantissa * ((power.astype(mx.int32) + 127) << 23).view(mx.float32)


@_exp.vjp
def _exp_vjp(_: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    return cotangent * y


@Custom
def _erf(x: mx.array) -> mx.array:
    bounded = mx.clip(x, -4, 4)
    square = bounded * bounded
    return bounded * _polynomial(_ERF_P, square) / _polynomial(_ERF_Q, square)


@_erf.vjp
def _erf_vjp(x: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
    return cotangent * (exp(-x * x) * (2 / math.sqrt(math.pi)))


@Custom
def _tanh(x: mx.array) -> mx.array:
    bounded = mx.clip(x, *_TANH_RANGE)
    square = bounded * bounded
    return bounded * _polynomial(_TANH_P, square) / _polynomial(_TANH_Q, square)


@_tanh.vjp
def _tanh_vjp(_: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    return cotangent * (1 - y * y)


@Custom
def _sigmoid(x: mx.array) -> mx.array:
    return 1 / (1 + cast(mx.array, _exp(-x)))


@_sigmoid.vjp
def _sigmoid_vjp(_: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    return cotangent * y * (1 - y)


@Custom
def _softmax(x: mx.array) -> mx.array:
    weights: mx.array = _exp(x - mx.max(x, axis=-1, keepdims=True))
    return weights / mx.sum(weights, axis=-1, keepdims=True)


@_softmax.vjp
def _softmax_vjp(_: mx.array, cotangent: mx.array, y: mx.array) -> mx.array:
    weighted = cotangent * y
    return weighted - y * mx.sum(weighted, axis=-1, keepdims=True)


def exp(x: mx.array) -> mx.array:
    """Return e to the power of X."""
    return cast(mx.array, _exp(x)) if _vectorised(x) else mx.exp(x)


def erf(x: mx.array) -> mx.array:
    """Return the error function of X."""
    return cast(mx.array, _erf(x)) if _vectorised(x) else mx.erf(x)


def tanh(x: mx.array) -> mx.array:
    """Return the hyperbolic tangent of X."""
    return cast(mx.array, _tanh(x)) if _vectorised(x) else mx.tanh(x)


def sigmoid(x: mx.array) -> mx.array:
    """Return 1 / (1 + exp(-X))."""
    return cast(mx.array, _sigmoid(x)) if _vectorised(x) else mx.sigmoid(x)


def softmax(x: mx.array) -> mx.array:
    """Return exp(X) over its sum, along the last axis, summed in float32."""
    return cast(mx.array, _softmax(x)) if _vectorised(x) else mx.softmax(x, axis=-1, precise=True)


@Custom
def _softplus(x: mx.array) -> mx.array:
    return mx.maximum(x, 0) + mx.log1p(exp(-mx.abs(x)))


@_softplus.vjp
def _softplus_vjp(x: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
    return cotangent * sigmoid(x)


def softplus(x: mx.array) -> mx.array:
    """Return log(1 + exp(X)) without overflow."""
    return cast(mx.array, _softplus(x))
