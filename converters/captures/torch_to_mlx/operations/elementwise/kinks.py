"""Functions with kinks, ties or poles, whose gradients there are those of torch's ``derivatives.yaml``.

Where a gradient is infinite, MLX's own ``where`` and ``maximum`` give NaN to what they did not choose.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import mlx.core as mx

from ...dtypes import is_float
from ..gradients import alike, elementwise, where, with_gradient, zero_where
from ..registry import register

Operand = mx.array | float

_INTEGERS = {1: mx.int8, 2: mx.int16, 4: mx.int32, 8: mx.int64}


def relu(x: mx.array) -> mx.array:
    """Return X, and 0 where it is not above 0: there the gradient is 0, and NaN stays."""
    result: mx.array = _relu(x)
    return result


_relu = with_gradient(
    lambda x: mx.maximum(x, 0),
    lambda g, _, x: zero_where(x <= 0, g),
)


def clamp(x: mx.array, low: Operand | None = None, high: Operand | None = None) -> mx.array:
    """Bound X from both sides, HIGH last; X has the gradient where it equals a bound."""
    if not isinstance(low, mx.array) and not isinstance(high, mx.array):
        return _bounded(x, low, high)
    outside, inside = mx.stop_gradient(x), []
    if low is not None:
        outside = mx.maximum(outside, low)
        inside.append(x >= low)
    if high is not None:
        outside = mx.minimum(outside, high)
        inside.append(x <= high)
    return where(reduce(mx.logical_and, inside), x, outside)


def _bounded(x: mx.array, low: float | None, high: float | None) -> mx.array:
    """Bound X by numbers: one kernel each way."""

    def bounded(x: mx.array) -> mx.array:
        x = x if low is None else mx.maximum(x, low)
        return x if high is None else mx.minimum(x, high)

    def back(g: mx.array, _: mx.array, x: mx.array) -> mx.array:
        seen = [x >= low] if low is not None else []
        seen += [x <= high] if high is not None else []
        return zero_where(mx.logical_not(reduce(mx.logical_and, seen)), g)

    result: mx.array = with_gradient(bounded, back)(x)
    return result


def _halved_at_ties(function: Any) -> Any:
    """Make ``maximum`` or ``minimum`` give each operand half of the gradient where they are equal."""

    def apply(a: Operand, b: Operand) -> mx.array:
        first, second = alike([a, b])
        if not is_float(first):
            return mx.array(function(first, second))
        tie = mx.where(mx.isinf(first), first, first / 2 + second / 2)
        return mx.where(first == second, tie, function(first, second))

    return apply


maximum, minimum = _halved_at_ties(mx.maximum), _halved_at_ties(mx.minimum)


def fmax(a: mx.array, b: mx.array) -> mx.array:
    """Return the larger; a number before NaN; A where they are equal."""
    return mx.where((a >= b) | mx.isnan(b), a, b)


def fmin(a: mx.array, b: mx.array) -> mx.array:
    """Return the smaller; a number before NaN; A where they are equal."""
    return mx.where((a <= b) | mx.isnan(b), a, b)


def signbit(x: mx.array) -> mx.array:
    """Tell where X has its sign bit set: -0.0 has, unsigned numbers have not."""
    return x.view(_INTEGERS[x.dtype.size]) < 0 if is_float(x) else x < 0


def copysign(a: mx.array, b: Operand) -> mx.array:
    """Return the magnitude of A with the sign of B."""
    sign = mx.stop_gradient(b) if isinstance(b, mx.array) else mx.array(b, a.dtype)
    return mx.where(signbit(sign), -mx.abs(a), mx.abs(a))


def _power(a: mx.array, b: mx.array) -> mx.array:
    return mx.power(a, b)


def _power_gradient(
    cotangent: mx.array, result: mx.array, a: mx.array, b: mx.array
) -> tuple[mx.array, mx.array]:
    to_base = zero_where(b == 0, b * mx.power(a, b - 1))
    to_exponent = zero_where((a == 0) & (b >= 0), result * mx.log(a))
    return cotangent * to_base, cotangent * to_exponent


def _xlogy(a: mx.array, b: mx.array) -> mx.array:
    product = zero_where(a == 0, a * mx.log(b))
    return mx.where(mx.isnan(b), b, product)


def _xlog1py(a: mx.array, b: mx.array) -> mx.array:
    product = zero_where(a == 0, a * mx.log1p(b))
    return mx.where(mx.isnan(b), b, product)


def _entropy(x: mx.array) -> mx.array:
    below = mx.where(x < 0, mx.array(-math.inf, x.dtype), x)
    return mx.where(x > 0, -x * mx.log(x), below)


def _sinc(x: mx.array) -> mx.array:
    angle = x * math.pi
    return mx.where(x == 0, mx.ones_like(x), mx.sin(angle) / angle)


def _sinc_gradient(cotangent: mx.array, _: mx.array, x: mx.array) -> mx.array:
    angle = x * math.pi
    return cotangent * zero_where(x == 0, (angle * mx.cos(angle) - mx.sin(angle)) / (angle * x))


def _atan2_gradient(
    cotangent: mx.array, _: mx.array, a: mx.array, b: mx.array
) -> tuple[mx.array, mx.array]:
    square = a * a + b * b
    scale = cotangent * zero_where(square == 0, mx.reciprocal(square))
    return scale * b, -scale * a


def _fmod(a: mx.array, b: mx.array) -> mx.array:
    """Take the sign of the dividend, as C does."""
    rest = mx.remainder(mx.abs(a), mx.abs(b))
    rest = mx.where(mx.isinf(b) & mx.isfinite(a), mx.abs(a), rest) if is_float(a) else rest
    return mx.where(a < 0, -rest, rest)


def _fmod_gradient(
    cotangent: mx.array, _: mx.array, a: mx.array, b: mx.array
) -> tuple[mx.array, mx.array]:
    ratio = a / b
    return cotangent, -cotangent * mx.where(ratio < 0, mx.ceil(ratio), mx.floor(ratio))


_passed_by = with_gradient(lambda _, new: new, lambda g, *_: (g, None))
power = elementwise(_power, _power_gradient)
xlogy = elementwise(
    _xlogy,
    lambda g, _, a, b: (zero_where((a == 0) & (b <= 0), g * mx.log(b)), g * a / b),
)
register(
    {
        "relu": relu,
        "special_entr": elementwise(_entropy, lambda g, _, x: -g * (1 + mx.log(x))),
        "sinc": elementwise(_sinc, _sinc_gradient),
    },
    promote="result",
    arity=1,
)
register({"signbit": signbit}, arity=1)
register(
    {"weighbridge::passed_by": lambda old, new: _passed_by(old, mx.stop_gradient(new))}, arity=2
)
register(
    {
        "maximum max.other": maximum,
        "minimum min.other": minimum,
        "clamp_min clamp_min.Tensor": lambda x, low: clamp(x, low=low),
        "clamp_max clamp_max.Tensor": lambda x, high: clamp(x, high=high),
        "fmax": fmax,
        "fmin": fmin,
        "copysign.Tensor copysign.Scalar": copysign,
        "atan2 arctan2": elementwise(mx.arctan2, _atan2_gradient),
        "fmod.Tensor fmod.Scalar": elementwise(_fmod, _fmod_gradient),
        "pow.Tensor_Tensor": power,
        "pow.Scalar": power,
        "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": xlogy,
        "special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar": elementwise(
            _xlog1py,
            lambda g, _, a, b: (
                zero_where((a == 0) & (b <= -1), g * mx.log1p(b)),
                g * a / (b + 1),
            ),
        ),
    },
    promote="result",
    arity=2,
)
register(
    {
        "clamp clip clamp.Tensor clip.Tensor": lambda self, min_=None, max_=None: clamp(
            self, min_, max_
        )
    },
    promote="result",
)
