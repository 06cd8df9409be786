"""Elementwise arithmetic; operands come in the dtype of the result, as torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..dtypes import is_float
from .elementary import erf, exp
from .registry import operation, register

Operand = mx.array | float


def _floor_divide(a: Any, b: Any) -> mx.array:
    """Round towards minus infinity; MLX's integer division truncates."""
    array = a if isinstance(a, mx.array) else b
    if is_float(array):
        return mx.floor(a / b)
    quotient = mx.floor_divide(a, b)
    rest = a - quotient * b
    return mx.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


def _truncate(x: mx.array) -> mx.array:
    return mx.where(x < 0, mx.ceil(x), mx.floor(x)) if is_float(x) else x


def _integers_as_they_are(function: Callable[[mx.array], mx.array]) -> Callable[..., mx.array]:
    return lambda self: function(self) if is_float(self) else self


register(
    {
        "abs absolute": lambda self: mx.abs(self),
        "neg negative": lambda self: mx.negative(self),
        "positive": lambda self: self,
        "square": lambda self: self * self,
        "sign sgn": lambda self: mx.sign(self),
        "floor": _integers_as_they_are(mx.floor),
        "ceil": _integers_as_they_are(mx.ceil),
        "round": _integers_as_they_are(mx.round),
        "trunc fix": _integers_as_they_are(_truncate),
        "frac": lambda self: self - _truncate(self),
        "exp": lambda self: exp(self),
        "expm1": lambda self: mx.expm1(self),
        "exp2": lambda self: mx.power(mx.array(2, self.dtype), self),
        "log": lambda self: mx.log(self),
        "log1p": lambda self: mx.log1p(self),
        "log2": lambda self: mx.log2(self),
        "log10": lambda self: mx.log10(self),
        "sqrt": lambda self: mx.sqrt(self),
        "rsqrt": lambda self: mx.rsqrt(self),
        "reciprocal": lambda self: mx.reciprocal(self),
        "sin": lambda self: mx.sin(self),
        "cos": lambda self: mx.cos(self),
        "tan": lambda self: mx.tan(self),
        "sinh": lambda self: mx.sinh(self),
        "cosh": lambda self: mx.cosh(self),
        "asin arcsin": lambda self: mx.arcsin(self),
        "acos arccos": lambda self: mx.arccos(self),
        "atan arctan": lambda self: mx.arctan(self),
        "asinh arcsinh": lambda self: mx.arcsinh(self),
        "acosh arccosh": lambda self: mx.arccosh(self),
        "atanh arctanh": lambda self: mx.arctanh(self),
        "erf": lambda self: erf(self),
        "erfc": lambda self: 1 - erf(self),
        "erfinv": lambda self: mx.erfinv(self),
        "rad2deg": lambda self: mx.degrees(self),
        "deg2rad": lambda self: mx.radians(self),
        # alpha scales the second operand: BERT-like masks use it as rsub's.
        "add.Tensor add.Scalar": lambda self, other, alpha=1: self + _scaled(other, alpha),
        "sub.Tensor sub.Scalar subtract.Tensor": lambda self, other, alpha=1: (
            self - _scaled(other, alpha)
        ),
        "rsub.Tensor rsub.Scalar": lambda self, other, alpha=1: other - _scaled(self, alpha),
        "mul.Tensor mul.Scalar multiply.Tensor": lambda self, other: self * other,
        "div.Tensor div.Scalar divide.Tensor true_divide.Tensor": lambda self, other: self / other,
        "floor_divide floor_divide.Scalar": lambda self, other: _floor_divide(self, other),
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": lambda self, other: (
            mx.remainder(self, other)
        ),
        "maximum max.other clamp_min.Tensor": lambda self, **k: mx.maximum(self, *k.values()),
        "minimum min.other clamp_max.Tensor": lambda self, **k: mx.minimum(self, *k.values()),
        "atan2 arctan2": lambda self, other: mx.arctan2(self, other),
        "logaddexp": lambda self, other: mx.logaddexp(self, other),
        "hypot": lambda self, other: mx.sqrt(self * self + other * other),
        "copysign.Tensor": lambda self, other: mx.where(other < 0, -mx.abs(self), mx.abs(self)),
        "addcmul": lambda self, tensor1, tensor2, value=1: self + value * tensor1 * tensor2,
        "addcdiv": lambda self, tensor1, tensor2, value=1: self + value * tensor1 / tensor2,
        "lerp.Scalar lerp.Tensor": lambda self, end, weight: self + weight * (end - self),
        "clamp clip clamp.Tensor clip.Tensor": lambda self, min_=None, max_=None: (
            _clamp(self, min_, max_)
        ),
        "clamp_min": lambda self, min_: mx.maximum(self, min_),
        "clamp_max": lambda self, max_: mx.minimum(self, max_),
        "pow.Tensor_Tensor": lambda self, exponent: mx.power(self, exponent),
        "pow.Scalar": lambda self, exponent: mx.power(mx.array(self, exponent.dtype), exponent),
    },
    promote="result",
)


def _scaled(operand: Any, alpha: float) -> Any:
    return operand if alpha == 1 else operand * alpha


def _clamp(x: mx.array, low: Operand | None, high: Operand | None) -> mx.array:
    """Bound X from both sides; where the bounds cross, the upper one wins as in torch."""
    x = x if low is None else mx.maximum(x, low)
    return x if high is None else mx.minimum(x, high)


@operation("div.Tensor_mode", "div.Scalar_mode", promote="result")
def _divide(self: Any, other: Any, rounding_mode: str | None = None) -> mx.array:
    if rounding_mode is None:
        return self / other
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if is_float(self):
        return _truncate(self / other)
    magnitude = mx.floor_divide(mx.abs(self), mx.abs(other))
    return mx.where((self < 0) != (other < 0), -magnitude, magnitude)


@operation("fmod.Tensor", "fmod.Scalar", promote="result")
def _fmod(self: mx.array, other: Operand) -> mx.array:
    """Take the sign of the dividend, as C does."""
    rest = mx.remainder(mx.abs(self), mx.abs(mx.array(other)))
    return mx.where(self < 0, -rest, rest)


_POWERS: dict[float, Callable[[mx.array], mx.array]] = {
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: mx.sqrt,
    -0.5: mx.rsqrt,
    -1: mx.reciprocal,
}


@operation("pow.Tensor_Scalar", promote="result")
def _power(self: mx.array, exponent: float) -> mx.array:
    return _POWERS.get(exponent, lambda x: mx.power(x, exponent))(self)


@operation("nan_to_num")
def _nan_to_num(
    self: mx.array,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> mx.array:
    return mx.nan_to_num(self, nan or 0.0, posinf, neginf) if is_float(self) else self


@operation("xlogy.Tensor", promote="result")
def _xlogy(self: mx.array, other: mx.array) -> mx.array:
    product = self * mx.log(mx.where(self == 0, mx.ones_like(other), other))
    return mx.where(mx.isnan(other), other, product)
