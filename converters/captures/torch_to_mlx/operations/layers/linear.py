"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ...dtypes import is_float
from ..gradients import with_gradient
from ..registry import operation, register


def matmul(a: mx.array, b: mx.array) -> mx.array:
    """Multiply matrices; integers as float32, which MLX can, exact below 2**24."""
    if is_float(a):
        return mx.matmul(a, b)
    return mx.matmul(a.astype(mx.float32), b.astype(mx.float32))


register(
    {
        "mm bmm mv dot matmul linalg_matmul": matmul,
        "vdot": lambda a, b: matmul(mx.conj(a) if a.dtype == mx.complex64 else a, b),
        "inner": mx.inner,
        "outer ger": mx.outer,
        "kron": mx.kron,
    },
    arity=2,
)
register({"trace": mx.trace}, arity=1)


def plus_product(
    added: mx.array, a: mx.array, b: mx.array, alpha: float = 1, beta: float = 1
) -> mx.array:
    """Return beta * ADDED + alpha * A B, rounded once, as in torch, where A and B are matrices of floats."""
    if is_float(a) and min(a.ndim, b.ndim) > 1 and min(a.size, b.size):
        return mx.addmm(added, a, b, alpha=alpha, beta=beta)
    return _weighted(added, matmul(a, b), alpha, beta)


def _weighted(added: mx.array, product: mx.array, alpha: float, beta: float) -> mx.array:
    product = product if alpha == 1 else alpha * product
    return product + (added if beta == 1 else beta * added)


def _adding(sum_: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Make the handler of SUM_ (self, first, second, alpha, beta)."""

    def add(self: mx.array, beta: float = 1, alpha: float = 1, **factors: mx.array) -> mx.array:
        return sum_(self, *factors.values(), alpha, beta)

    return add


register(
    {
        "addmm addmv baddbmm": _adding(plus_product),
        "addbmm": _adding(lambda to, a, b, *scales: _weighted(to, matmul(a, b).sum(0), *scales)),
        "addr": _adding(lambda to, a, b, *scales: _weighted(to, mx.outer(a, b), *scales)),
    }
)


@operation("linear")
def _linear(input_: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    if bias is None:
        return matmul(input_, weight.T)
    whole = bias.shape == weight.shape[:1] and weight.ndim == 2
    if not whole or not is_float(input_) or input_.ndim < 2 or not input_.size:
        return plus_product(bias, input_, weight.T)
    result: mx.array = _layer(input_, weight, bias)
    return result


def _layer_gradient(g: mx.array, _: mx.array, x: mx.array, weight: mx.array, __: mx.array) -> Any:
    """Sum rows, for the bias, by a product with ones: on GPUs MLX adds columns up slowly."""
    rows, given = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return g @ weight, rows.T @ given, (mx.ones((1, len(rows)), g.dtype) @ rows).squeeze(0)


_layer = with_gradient(lambda x, weight, bias: mx.addmm(bias, x, weight.T), _layer_gradient)


@operation("einsum")
def _einsum(
    equation: str,
    tensors: Sequence[mx.array],
    path: Sequence[int] | None = None,  # noqa: ARG001 - the order of contraction, a hint
) -> mx.array:
    return mx.einsum(equation.replace(" ", ""), *tensors)


@operation("bilinear")
def _bilinear(
    input1: mx.array, input2: mx.array, weight: mx.array, bias: mx.array | None = None
) -> mx.array:
    """Return x1 W(k) x2 + b(k) for each output k; W is ``(outputs, inputs 1, inputs 2)``."""
    products = matmul(input1[..., None, None, :], weight).squeeze(-2) * input2[..., None, :]
    total = mx.sum(products, axis=-1)
    return total if bias is None else total + bias
