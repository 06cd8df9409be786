"""Modified Bessel functions of orders 0 and 1, good to float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np

from ..gradients import elementwise
from ..registry import register
from .elementary import exp
from .special import series

_FAR: Final = 80.0  # from here on four terms of the asymptotic series are good to float32
# (-1)^k a(k) of DLMF 10.40.1
_ORDER_0: Final = (1.0, 1 / 8, 9 / 128, 225 / 3072)
_ORDER_1: Final = (1.0, -3 / 8, -15 / 128, -315 / 3072)
# DLMF 10.32.3 on 64 angles: below _FAR the sum differs from the integral by less than 1e-10.
_COSINES: Final = np.cos(np.arange(64) * (2 * math.pi / 64))
_POSITIVE: Final = _COSINES[_COSINES > 1e-6]


def _far(x: mx.array, coefficients: Sequence[float]) -> mx.array:
    x = mx.maximum(x, _FAR)
    return series(coefficients, 1 / x) / mx.sqrt(2 * math.pi * x)


def _i0e(x: mx.array) -> mx.array:
    """exp(-|X|) I0(X)."""
    size = mx.abs(x)
    near = mx.minimum(size, _FAR)[..., None] * mx.array(_COSINES - 1, x.dtype)
    return mx.where(size < _FAR, mx.mean(exp(near), axis=-1), _far(size, _ORDER_0))


def _i1e(x: mx.array) -> mx.array:
    """exp(-|X|) I1(X); opposite angles are subtracted first, so that nothing is lost near 0."""
    size = mx.abs(x)
    near, cosines = mx.minimum(size, _FAR)[..., None], mx.array(_POSITIVE, x.dtype)
    parts = -cosines * exp(near * (cosines - 1)) * mx.expm1(-2 * near * cosines)
    value = mx.where(size < _FAR, mx.sum(parts, axis=-1) / len(_COSINES), _far(size, _ORDER_1))
    return mx.sign(x) * value


def _grown(scaled: mx.array, x: mx.array) -> mx.array:
    """Return SCALED exp(|X|), which may be finite where the exponential is not."""
    half = exp(mx.abs(x) / 2)
    return scaled * half * half


def _i0(x: mx.array) -> mx.array:
    return _grown(_i0e(x), x)


def _i1(x: mx.array) -> mx.array:
    return _grown(_i1e(x), x)


def _slope(first: mx.array, zeroth: mx.array, x: mx.array) -> mx.array:
    """Return the derivative of order 1, scaled or not: I0 - I1 / X, and I0 / 2 at 0."""
    zero = x == 0
    return mx.where(zero, zeroth / 2, zeroth - first / mx.where(zero, mx.ones_like(x), x))


_zeroth = elementwise(_i0, lambda g, _, x: g * _i1(x))
_zeroth_scaled = elementwise(_i0e, lambda g, y, x: g * (_i1e(x) - mx.sign(x) * y))
_first = elementwise(_i1, lambda g, y, x: g * _slope(y, _i0(x), x))
_first_scaled = elementwise(_i1e, lambda g, y, x: g * (_slope(y, _i0e(x), x) - mx.sign(x) * y))


register(
    {
        "i0 special_i0 prims.bessel_i0.default": _zeroth,
        "special_i0e prims.bessel_i0e.default": _zeroth_scaled,
        "special_i1 prims.bessel_i1.default": _first,
        "special_i1e prims.bessel_i1e.default": _first_scaled,
    },
    promote="result",
    arity=1,
)
