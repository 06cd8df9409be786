"""Inverses, determinants, solutions of linear systems and functions of matrices."""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx

from ..registry import operation, register
from .precision import diagonal, differentiable, precise, transposed


def _invert(x: mx.array) -> mx.array:
    return mx.linalg.inv(x) if x.size else x


# Giles 2008, section 2.2.3
_inverse = differentiable(_invert, lambda g, y, _: -transposed(y) @ g @ transposed(y))
inverse = precise(_inverse)


def _solution(a: mx.array, b: mx.array) -> mx.array:
    """Solve A X = B for matrices B."""
    shape = mx.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = mx.broadcast_to(a, (*shape, *a.shape[-2:]))
    b = mx.broadcast_to(b, (*shape, *b.shape[-2:]))
    found: mx.array = _solve(a, b)
    return found


def _solution_gradient(g: mx.array, y: mx.array, a: mx.array, b: mx.array) -> Any:  # noqa: ARG001
    """Giles 2008, section 2.3.1."""
    to_b = mx.linalg.solve(transposed(a), g) if g.size else g
    return -to_b @ transposed(y), to_b


_solve = differentiable(
    lambda a, b: mx.linalg.solve(a, b) if b.size and a.size else mx.zeros_like(b),
    _solution_gradient,
)


@precise
def solve(a: mx.array, b: mx.array, left: bool = True) -> mx.array:
    """Solve A X = B, or X A = B; B may be vectors, one for each matrix."""
    vectors = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    b = b[..., None] if vectors else b
    found = _solution(a, b) if left else transposed(_solution(transposed(a), transposed(b)))
    return found.squeeze(-1) if vectors else found


@precise
def triangular(
    a: mx.array, b: mx.array, upper: bool, left: bool = True, unit: bool = False
) -> mx.array:
    """Solve with triangular matrices A, of which nothing else is read."""
    a = mx.triu(a, int(unit)) if upper else mx.tril(a, -int(unit))
    a = a + mx.eye(a.shape[-1], dtype=a.dtype) if unit else a
    return _solution(a, b) if left else transposed(_solution(transposed(a), transposed(b)))


def _determinant_gradient(g: mx.array, _: mx.array, x: mx.array) -> mx.array:
    """Multiply by the cofactors, which singular matrices have too: det(U V) U diag(prod of others) V."""
    left, values, right = mx.linalg.svd(x)
    sign = mx.linalg.det(left) * mx.linalg.det(right)
    count = x.shape[-1]
    others = mx.where(mx.eye(count) > 0, mx.ones((), x.dtype), values[..., None, :])
    cofactors = left @ diagonal(mx.prod(others, axis=-1)) @ right
    return (g * sign)[..., None, None] * cofactors


_det = differentiable(
    lambda x: mx.linalg.det(x) if x.size else mx.ones(x.shape[:-2], x.dtype),
    lambda g, y, x: _determinant_gradient(g, y, x) if x.size else mx.zeros_like(x),
)


def _log_determinant(x: mx.array) -> tuple[mx.array, mx.array]:
    if not x.size:
        return mx.ones(x.shape[:-2], x.dtype), mx.zeros(x.shape[:-2], x.dtype)
    sign, logarithm = mx.linalg.slogdet(x)
    return sign, logarithm


_slogdet = differentiable(
    _log_determinant,
    lambda g, _, x: g[1][..., None, None] * transposed(_invert(x)),
)


@precise
def _pseudoinverse(x: mx.array, tolerance: Any) -> mx.array:
    """Invert singular values above the tolerance; gradient by Golub and Pereyra 1973, equation 4.12."""
    left, values, right = mx.linalg.svd(mx.stop_gradient(x))
    count = values.shape[-1]
    kept = values > tolerance(values)
    inverted = mx.where(kept, 1 / mx.where(kept, values, 1.0), 0.0)
    found = transposed(right[..., :count, :]) @ (
        inverted[..., :, None] * transposed(left[..., :count])
    )
    made: mx.array = _with_pinv_gradient(x, mx.stop_gradient(found))
    return made


def _pinv_gradient(g: mx.array, y: mx.array, x: mx.array, _: mx.array) -> Any:
    back, turned = transposed(y), transposed(g)
    found = -back @ g @ back
    rows, columns = x.shape[-2:]
    outside_rows = mx.eye(rows, dtype=x.dtype) - x @ y
    outside_columns = mx.eye(columns, dtype=x.dtype) - y @ x
    found = found + outside_rows @ turned @ y @ back
    return found + back @ y @ turned @ outside_columns, None


_with_pinv_gradient = differentiable(lambda _, found: found, _pinv_gradient)


@operation("linalg_pinv.atol_rtol_tensor")
def _linalg_pinv(
    self: mx.array,
    atol: mx.array | None = None,
    rtol: mx.array | None = None,
    hermitian: Literal[False] = False,  # noqa: ARG001 - the gradient of others is not torch's
) -> mx.array:
    if not self.size:
        return transposed(self)
    default = 0.0 if atol is not None else max(self.shape[-2:]) * mx.finfo(self.dtype).eps
    relative = default if rtol is None else rtol[..., None].astype(mx.float64)
    absolute = 0.0 if atol is None else atol[..., None].astype(mx.float64)

    def tolerance(values: mx.array) -> mx.array:
        return mx.maximum(mx.array(absolute), relative * mx.max(values, axis=-1, keepdims=True))

    found: mx.array = _pseudoinverse(self, tolerance)
    return found


# Taylor's series to this order of a matrix of norm below 1/2 is exact in float64.
_TERMS, _SQUARINGS = 14, 24


@operation("linalg_matrix_exp")
@precise
def _matrix_exp(self: mx.array) -> mx.array:
    """Scale, sum the series, square back (Higham 2005); as often as the norm of each matrix asks."""
    if not self.size:
        return self
    size = mx.max(mx.sum(mx.abs(mx.stop_gradient(self)), axis=-1), axis=-1)
    times = mx.maximum(mx.ceil(mx.log2(mx.maximum(size, 1e-30))) + 1, 0)[..., None, None]
    scaled = self / mx.power(mx.array(2.0, mx.float64), times)
    identity = mx.eye(self.shape[-1], dtype=self.dtype)
    found = identity + scaled / _TERMS
    for term in range(_TERMS - 1, 0, -1):
        found = identity + scaled @ found / term
    for step in range(_SQUARINGS):
        found = mx.where(step < times, mx.where(step < times, found, 0.0) @ found, found)
    return found


def _flag(x: mx.array) -> mx.array:
    return mx.zeros(x.shape[:-2], mx.int32)


def _by_factor(factor: mx.array, b: mx.array) -> mx.array:
    """Solve A X = B by the lower FACTOR of A, of which nothing else is read."""
    first = triangular(factor, b, upper=False)
    found: mx.array = triangular(transposed(factor), first, upper=True)
    return found


def _factor_gradient(g: mx.array, y: mx.array, factor: mx.array, _: mx.array) -> Any:
    """As torch has it (`cholesky_solve_backward`): of all of the factor, what is not read included."""
    to_b = _by_factor(factor, g)
    shared = to_b @ transposed(y)
    return -(shared + transposed(shared)) @ factor, to_b


_solve_by_factor = differentiable(_by_factor, _factor_gradient)


@precise
def _from_factor(factor: mx.array, b: mx.array, upper: bool) -> mx.array:
    lower = transposed(factor) if upper else factor
    shape = mx.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
    lower = mx.broadcast_to(lower, (*shape, *lower.shape[-2:]))
    found: mx.array = _solve_by_factor(lower, mx.broadcast_to(b, (*shape, *b.shape[-2:])))
    return found


def _inverse_from_factor(self: mx.array, upper: bool = False) -> mx.array:
    found: mx.array = _from_factor(self, mx.eye(self.shape[-1], dtype=self.dtype), upper)
    return found


register(
    {
        "linalg_inv_ex": lambda A: (inverse(A), _flag(A)),
        "linalg_solve": lambda A, B, left=True: solve(A, B, left=left),
        "_linalg_det": lambda A: (precise(_det)(A), None, None),
        "_linalg_slogdet": lambda A: (*precise(_slogdet)(A), None, None),
        "_linalg_solve_ex": lambda A, B, left=True: (solve(A, B, left=left), None, None, _flag(A)),
        "linalg_solve_triangular": lambda self, B, upper, left=True, unitriangular=False: (
            triangular(self, B, upper=upper, left=left, unit=unitriangular)
        ),
        "triangular_solve": lambda self, A, upper=True, transpose=False, unitriangular=False: (
            triangular(
                transposed(A) if transpose else A,
                self,
                upper=upper != transpose,
                unit=unitriangular,
            ),
            mx.broadcast_to(
                A, (*mx.broadcast_shapes(A.shape[:-2], self.shape[:-2]), *A.shape[-2:])
            ),
        ),
        "cholesky_solve": lambda self, input2, upper=False: _from_factor(input2, self, upper),
        "cholesky_inverse": _inverse_from_factor,
    }
)
register({"linalg_inv inverse": inverse}, arity=1)
