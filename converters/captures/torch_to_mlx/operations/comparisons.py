"""Comparisons, logic, and choosing by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .registry import operation, register

Operand = mx.array | float

# Compared in the operands' common type; the result is boolean.
register(
    {
        "eq.Tensor eq.Scalar": lambda self, other: mx.equal(self, other),
        "ne.Tensor ne.Scalar": lambda self, other: mx.not_equal(self, other),
        "lt.Tensor lt.Scalar": lambda self, other: mx.less(self, other),
        "le.Tensor le.Scalar": lambda self, other: mx.less_equal(self, other),
        "gt.Tensor gt.Scalar": lambda self, other: mx.greater(self, other),
        "ge.Tensor ge.Scalar": lambda self, other: mx.greater_equal(self, other),
        "isclose": lambda self, other, rtol=1e-5, atol=1e-8, equal_nan=False: mx.isclose(
            self, other, rtol, atol, equal_nan
        ),
    },
    promote="operands",
)
register(
    {
        "isnan": lambda self: mx.isnan(self),
        "isinf": lambda self: mx.isinf(self),
        "isfinite": lambda self: mx.isfinite(self),
        "isposinf": lambda self: mx.isposinf(self),
        "isneginf": lambda self: mx.isneginf(self),
        "signbit": lambda self: self < 0,
    }
)
register(
    {
        "logical_not": lambda self: mx.logical_not(self),
        "logical_and": lambda self, other: mx.logical_and(self, other),
        "logical_or": lambda self, other: mx.logical_or(self, other),
        "logical_xor": lambda self, other: mx.not_equal(self, other),
        "where.self where.ScalarOther where.ScalarSelf": lambda condition, self, other: mx.where(
            condition, self, other
        ),
    },
    promote="result",
)


def _bitwise(
    integers: Callable[..., mx.array], booleans: Callable[..., mx.array]
) -> Callable[..., mx.array]:
    def apply(self: Any, other: Any) -> mx.array:
        array = self if isinstance(self, mx.array) else other
        return (booleans if array.dtype == mx.bool_ else integers)(self, other)

    return apply


for _name, _function in {
    "and": _bitwise(mx.bitwise_and, mx.logical_and),
    "or": _bitwise(mx.bitwise_or, mx.logical_or),
    "xor": _bitwise(mx.bitwise_xor, mx.not_equal),
}.items():
    operation(
        *[f"{form}.{kind}" for form in (f"bitwise_{_name}", f"__{_name}__") for kind in ("Tensor", "Scalar")],
        promote="result",
    )(_function)
register(
    {
        "bitwise_left_shift.Tensor __lshift__.Scalar": lambda self, other: mx.left_shift(self, other),
        "bitwise_right_shift.Tensor __rshift__.Scalar": lambda self, other: mx.right_shift(
            self, other
        ),
    },
    promote="result",
)


@operation("bitwise_not")
def _bitwise_not(self: mx.array) -> mx.array:
    return mx.logical_not(self) if self.dtype == mx.bool_ else mx.bitwise_invert(self)


@operation("where.Scalar")
def _where_scalars(
    condition: mx.array, self: float, other: float, dtype: mx.Dtype
) -> mx.array:
    return mx.where(condition, mx.array(self, dtype), mx.array(other, dtype))


@operation("masked_fill.Scalar", "masked_fill.Tensor", promote="result")
def _masked_fill(self: mx.array, mask: mx.array, value: Operand) -> mx.array:
    return mx.where(mask, mx.array(value, self.dtype), self)


@operation("isin.Tensor_Tensor")
def _isin(
    elements: mx.array,
    test_elements: mx.array,
    assume_unique: bool = False,  # noqa: ARG001 - a hint for speed
    invert: bool = False,
) -> mx.array:
    found = mx.any(elements[..., None] == test_elements.reshape(-1), axis=-1)
    return mx.logical_not(found) if invert else found
