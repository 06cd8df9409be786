"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..dtypes import is_float
from .registry import operation, register


def matmul(a: mx.array, b: mx.array) -> mx.array:
    """Multiply matrices; integers as float32, which MLX can, exact below 2**24."""
    if is_float(a):
        return mx.matmul(a, b)
    return mx.matmul(a.astype(mx.float32), b.astype(mx.float32))


register(
    {
        "mm bmm": lambda self, mat2: matmul(self, mat2),
        "mv": lambda self, vec: matmul(self, vec),
        "dot vdot": lambda self, **other: matmul(self, *other.values()),
        "matmul linalg_matmul": lambda self, other: matmul(self, other),
        "inner": lambda self, other: mx.inner(self, other),
        "outer ger": lambda self, vec2: mx.outer(self, vec2),
        "addmm": lambda self, mat1, mat2, beta=1, alpha=1: beta * self + alpha * matmul(mat1, mat2),
        "addmv": lambda self, mat, vec, beta=1, alpha=1: beta * self + alpha * matmul(mat, vec),
        "baddbmm": lambda self, batch1, batch2, beta=1, alpha=1: (
            beta * self + alpha * matmul(batch1, batch2)
        ),
        "addbmm": lambda self, batch1, batch2, beta=1, alpha=1: (
            beta * self + alpha * matmul(batch1, batch2).sum(0)
        ),
        "addr": lambda self, vec1, vec2, beta=1, alpha=1: (
            beta * self + alpha * mx.outer(vec1, vec2)
        ),
        "kron": lambda self, other: mx.kron(self, other),
        "trace": lambda self: mx.trace(self),
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
