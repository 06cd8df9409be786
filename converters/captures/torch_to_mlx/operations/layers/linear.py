"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from ...dtypes import is_float
from ..registry import operation, register


def matmul(a: mx.array, b: mx.array) -> mx.array:
    """Multiply matrices; integers as float32, which MLX can, exact below 2**24."""
    if is_float(a):
        return mx.matmul(a, b)
    return mx.matmul(a.astype(mx.float32), b.astype(mx.float32))


register(
    {
        "mm bmm mv dot vdot matmul linalg_matmul": matmul,
        "inner": mx.inner,
        "outer ger": mx.outer,
        "kron": mx.kron,
    },
    arity=2,
)
register({"trace": mx.trace}, arity=1)


def _plus_product(
    product: Callable[[mx.array, mx.array], mx.array],
) -> Callable[..., mx.array]:
    """Make the handler of beta * self + alpha * PRODUCT (first, second)."""

    def add(self: mx.array, beta: float = 1, alpha: float = 1, **factors: mx.array) -> mx.array:
        scaled = product(*factors.values())
        scaled = scaled if alpha == 1 else alpha * scaled
        return scaled + (self if beta == 1 else beta * self)

    return add


register(
    {
        "addmm addmv baddbmm": _plus_product(matmul),
        "addbmm": _plus_product(lambda a, b: matmul(a, b).sum(0)),
        "addr": _plus_product(mx.outer),
    }
)


@operation("linear")
def _linear(input_: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    product = matmul(input_, weight.T)
    return product if bias is None else product + bias


@operation("einsum")
def _einsum(
    equation: str,
    tensors: Sequence[mx.array],
    path: Sequence[int] | None = None,  # noqa: ARG001 - the order of contraction, a hint
) -> mx.array:
    return mx.einsum(equation.replace(" ", ""), *tensors)


@operation("tensordot")
def _tensordot(
    self: mx.array, other: mx.array, dims_self: Sequence[int], dims_other: Sequence[int]
) -> mx.array:
    return mx.tensordot(self, other, [list(dims_self), list(dims_other)])


@operation("bilinear")
def _bilinear(
    input1: mx.array, input2: mx.array, weight: mx.array, bias: mx.array | None = None
) -> mx.array:
    """Return x1 W(k) x2 + b(k) for each output k; W is ``(outputs, inputs 1, inputs 2)``."""
    products = matmul(input1[..., None, None, :], weight).squeeze(-2) * input2[..., None, :]
    total = mx.sum(products, axis=-1)
    return total if bias is None else total + bias
