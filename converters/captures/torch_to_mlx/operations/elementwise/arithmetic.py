"""Elementwise arithmetic; operands come in the dtype of the result, as torch computes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx

from ...dtypes import is_float
from ..gradients import holomorphic, with_gradient
from ..registry import operation, register
from .elementary import erf, exp

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


@operation("round.decimals")
def _round_to(self: mx.array, decimals: int) -> mx.array:
    """Round to DECIMALS; whole tens divide, whose power of ten is exact where its inverse is not."""
    if not is_float(self):
        return self
    tens = 10.0 ** abs(decimals)
    if decimals < 0:
        return mx.round(self / tens) * tens
    return mx.round(self * tens) / tens if decimals else mx.round(self)


def _angle(x: mx.array) -> mx.array:
    if x.dtype == mx.complex64:
        return mx.arctan2(mx.imag(x), mx.real(x))
    turned = mx.where(x < 0, mx.array(math.pi, x.dtype), mx.zeros_like(x))
    return mx.where(mx.isnan(x), x, turned)


def _sign(x: mx.array) -> mx.array:
    if x.dtype != mx.complex64:
        return mx.sign(x)
    there = x != 0  # by its length, so that its direction has a gradient
    away = mx.where(there, x, mx.ones_like(x))
    return mx.where(there, away / mx.abs(away), mx.zeros_like(x))


def _conjugate(x: mx.array) -> mx.array:
    return mx.conj(x) if x.dtype == mx.complex64 else x


def _integers_as_they_are(function: Callable[[mx.array], mx.array]) -> Callable[..., mx.array]:
    return lambda self: function(self) if is_float(self) else self


register(
    {
        "neg negative _neg_view": mx.negative,
        "conj _conj _conj_physical conj_physical prims.conj_physical.default": _conjugate,
        "resolve_conj resolve_neg": lambda x: x,
        "square": mx.square,
        "sign sgn": _sign,
        "floor": _integers_as_they_are(mx.floor),
        "ceil": _integers_as_they_are(mx.ceil),
        "round": _integers_as_they_are(mx.round),
        "trunc fix": _integers_as_they_are(_truncate),
        "frac": lambda self: self - _truncate(self),
        "exp": exp,
        "expm1": mx.expm1,
        "exp2": lambda self: holomorphic(mx.power)(mx.array(2, self.dtype), self),
        "log": mx.log,
        "log1p": mx.log1p,
        "log2": mx.log2,
        "log10": mx.log10,
        "sqrt": mx.sqrt,
        "rsqrt": mx.rsqrt,
        "reciprocal": mx.reciprocal,
        "sin": mx.sin,
        "cos": mx.cos,
        "tan": mx.tan,
        "sinh": mx.sinh,
        "cosh": mx.cosh,
        "asin arcsin": mx.arcsin,
        "acos arccos": mx.arccos,
        "atan arctan": mx.arctan,
        "asinh arcsinh": mx.arcsinh,
        "acosh arccosh": mx.arccosh,
        "atanh arctanh": mx.arctanh,
        "erf": erf,
        "erfc": lambda self: 1 - erf(self),
        "erfinv": mx.erfinv,
        "rad2deg": mx.degrees,
        "deg2rad": mx.radians,
    },
    promote="result",
    arity=1,
)
register({"abs absolute": mx.abs, "angle": _angle}, arity=1)
register(
    {
        "mul.Tensor mul.Scalar multiply.Tensor": operator.mul,
        "div.Tensor div.Scalar divide.Tensor true_divide.Tensor": operator.truediv,
        "floor_divide floor_divide.Scalar": _floor_divide,
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": mx.remainder,
        "hypot": lambda a, b: mx.sqrt(a * a + b * b),
    },
    promote="result",
    arity=2,
)
register(
    {
        "add.Tensor add.Scalar": lambda self, other, alpha=1: self + _scaled(other, alpha),
        "sub.Tensor sub.Scalar subtract.Tensor": lambda self, other, alpha=1: (
            self - _scaled(other, alpha)
        ),
        "rsub.Tensor rsub.Scalar": lambda self, other, alpha=1: other - _scaled(self, alpha),
        "addcmul": lambda self, tensor1, tensor2, value=1: self + value * tensor1 * tensor2,
        "addcdiv": lambda self, tensor1, tensor2, value=1: self + value * tensor1 / tensor2,
        "lerp.Scalar lerp.Tensor": lambda self, end, weight: self + weight * (end - self),
    },
    promote="result",
)


def _scaled(operand: Any, alpha: float) -> Any:
    return operand if alpha == 1 else operand * alpha


@operation("div.Tensor_mode", "div.Scalar_mode", promote="result")
def _divide(self: Any, other: Any, rounding_mode: str | None = None) -> mx.array:
    if rounding_mode is None:
        return mx.divide(self, other)
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if is_float(self):
        return _truncate(self / other)
    magnitude = mx.floor_divide(mx.abs(self), mx.abs(other))
    return mx.where((self < 0) != (other < 0), -magnitude, magnitude)


_POWERS: dict[float, Callable[[mx.array], mx.array]] = {
    0: mx.ones_like,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: mx.sqrt,
    -0.5: mx.rsqrt,
    -1: mx.reciprocal,
}


@operation("pow.Tensor_Scalar", promote="result")
def _power(self: mx.array, exponent: float) -> mx.array:
    known = _POWERS.get(exponent)
    if known is not None:
        return known(self)
    # MLX's own takes 1 from the exponent in float32, which is off by the rounding of 1.3 times log(x).
    power = with_gradient(
        lambda x: mx.power(x, exponent), lambda g, _, x: g * (exponent * _power(x, exponent - 1))
    )
    return cast(mx.array, power(self))
