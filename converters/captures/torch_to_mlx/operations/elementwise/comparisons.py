"""Comparisons, logic, and choosing by a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..gradients import where
from ..registry import operation, register

Operand = mx.array | float

register(
    {
        "eq.Tensor eq.Scalar": mx.equal,
        "ne.Tensor ne.Scalar": mx.not_equal,
        "lt.Tensor lt.Scalar": mx.less,
        "le.Tensor le.Scalar": mx.less_equal,
        "gt.Tensor gt.Scalar": mx.greater,
        "ge.Tensor ge.Scalar": mx.greater_equal,
    },
    promote="operands",
    arity=2,
)
register(
    {
        "isnan": mx.isnan,
        "isinf": mx.isinf,
        "isfinite": mx.isfinite,
        "isposinf": mx.isposinf,
        "isneginf": mx.isneginf,
    },
    arity=1,
)
register({"logical_not": mx.logical_not}, promote="result", arity=1)
register(
    {
        "logical_and": mx.logical_and,
        "logical_or": mx.logical_or,
        "logical_xor": mx.not_equal,
        "bitwise_left_shift.Tensor __lshift__.Scalar": mx.left_shift,
        "bitwise_right_shift.Tensor __rshift__.Scalar": mx.right_shift,
    },
    promote="result",
    arity=2,
)
register(
    {"where.self where.ScalarOther where.ScalarSelf prims.where.default": where},
    promote="result",
    arity=3,
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
        *[
            f"{form}.{kind}"
            for form in (f"bitwise_{_name}", f"__{_name}__")
            for kind in ("Tensor", "Scalar")
        ],
        promote="result",
    )(_function)


@operation("bitwise_not")
def _bitwise_not(self: mx.array) -> mx.array:
    return mx.logical_not(self) if self.dtype == mx.bool_ else mx.bitwise_invert(self)


@operation("masked_fill.Scalar", "masked_fill.Tensor", promote="result")
def _masked_fill(self: mx.array, mask: mx.array, value: Operand) -> mx.array:
    return where(mask, mx.array(value, self.dtype), self)
