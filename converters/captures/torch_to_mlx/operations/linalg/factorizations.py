"""Factorizations of matrices, with the gradients of torch's ``FunctionsManual.cpp``."""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx

from ..registry import operation, register
from .precision import diagonal, differentiable, precise, quotient, transposed

Pair = tuple[mx.array, mx.array]


def _inverse(x: mx.array) -> mx.array:
    return mx.linalg.inv(x) if x.size else x


def _cholesky_gradient(cotangent: mx.array, lower: mx.array, _: mx.array) -> mx.array:
    """Murray 2016, equation 10."""
    middle = mx.tril(transposed(lower) @ cotangent)
    middle = (middle + transposed(mx.tril(middle, -1))) / 2
    inverse = _inverse(lower)
    return transposed(inverse) @ middle @ inverse


_lower = differentiable(lambda x: mx.linalg.cholesky(x) if x.size else x, _cholesky_gradient)


@precise
def cholesky(x: mx.array, upper: bool = False) -> mx.array:
    """Return the triangular factor of symmetric matrices, of which it reads one half."""
    factor = _lower(mirrored(x, upper))
    return transposed(factor) if upper else factor


def mirrored(x: mx.array, upper: bool) -> mx.array:
    """Return the symmetric matrices of one half of X; the gradient goes to both."""
    fixed = mx.stop_gradient(x)
    half = mx.triu(fixed) if upper else mx.tril(fixed)
    rest = mx.triu(fixed, 1) if upper else mx.tril(fixed, -1)
    return half + transposed(rest) + (x - fixed)


def _symmetric_gradient(cotangents: Any, results: Any, _: mx.array) -> mx.array:
    """Giles 2008, section 3.1."""
    (to_values, to_vectors), (values, vectors) = cotangents, results
    gaps = values[..., None, :] - values[..., :, None]
    middle = quotient(transposed(vectors) @ to_vectors, gaps)
    found: mx.array = vectors @ (diagonal(to_values) + middle) @ transposed(vectors)
    return (found + transposed(found)) / 2


def _symmetric(x: mx.array) -> Pair:
    if not x.size:
        return mx.zeros(x.shape[:-1], x.dtype), x
    values, vectors = mx.linalg.eigh(x)
    return values, vectors


_eigh = differentiable(_symmetric, _symmetric_gradient)


@operation("_linalg_eigh")
@precise
def eigh(
    A: mx.array,
    UPLO: str = "L",
    compute_v: bool = True,  # noqa: ARG001 - a hint for speed
) -> Pair:
    """Return eigenvalues, ascending, and eigenvectors of symmetric matrices."""
    found: Pair = _eigh(mirrored(A, UPLO.upper() == "U"))
    return found


def _thin(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Return the singular value decomposition with as many vectors as values."""
    count = min(x.shape[-2:])
    if not x.size:
        shape = x.shape[:-2]
        return (
            mx.zeros((*shape, x.shape[-2], count), x.dtype),
            mx.zeros((*shape, count), x.dtype),
            mx.zeros((*shape, count, x.shape[-1]), x.dtype),
        )
    left, values, right = mx.linalg.svd(x)
    return left[..., :count], values, right[..., :count, :]


def _singular_gradient(cotangents: Any, results: Any, x: mx.array) -> mx.array:
    """Townsend 2016; as ``svd_backward`` of torch."""
    (to_left, to_values, to_right), (left, values, right) = cotangents, results
    inner_left = transposed(left) @ to_left
    inner_right = right @ transposed(to_right)
    squares = values * values
    gaps = squares[..., None, :] - squares[..., :, None]
    middle = (inner_left - transposed(inner_left)) * values[..., None, :]
    middle = middle + (inner_right - transposed(inner_right)) * values[..., :, None]
    found: mx.array = left @ (quotient(middle, gaps) + diagonal(to_values)) @ right
    if x.shape[-2] > values.shape[-1]:
        rest = quotient(to_left, mx.broadcast_to(values[..., None, :], to_left.shape))
        found = found + (rest - left @ (transposed(left) @ rest)) @ right
    if x.shape[-1] > values.shape[-1]:
        rest = quotient(to_right, mx.broadcast_to(values[..., :, None], to_right.shape))
        found = found + left @ (rest - (rest @ transposed(right)) @ right)
    return found


_svd = differentiable(_thin, _singular_gradient)


@operation("_linalg_svd")
@precise
def _linalg_svd(
    A: mx.array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,  # noqa: ARG001 - for CUDA
) -> tuple[mx.array, mx.array, mx.array]:
    left, values, right = _svd(A)
    if not compute_uv:
        return mx.zeros((0,), A.dtype), values, mx.zeros((0,), A.dtype)
    if not full_matrices or A.shape[-1] == A.shape[-2]:
        return left, values, right
    if A.size:
        left, right = _completed(A, left, right)
    else:
        left, right = (
            mx.broadcast_to(mx.eye(count, dtype=A.dtype), (*A.shape[:-2], count, count))
            for count in A.shape[-2:]
        )
    return left, values, right


def _completed(x: mx.array, left: mx.array, right: mx.array) -> tuple[mx.array, mx.array]:
    """Add the vectors that no value belongs to: they get no gradient in torch either."""
    count = min(x.shape[-2:])
    first, _, second = mx.linalg.svd(mx.stop_gradient(x))
    rest = mx.stop_gradient(first[..., count:]), mx.stop_gradient(second[..., count:, :])
    return mx.concatenate([left, rest[0]], axis=-1), mx.concatenate([right, rest[1]], axis=-2)


def _square_gradient(to_q: mx.array, to_r: mx.array, q: mx.array, r: mx.array) -> mx.array:
    """Walter and Lehmann 2018, for as many rows as columns or more."""
    middle = r @ transposed(to_r) - transposed(to_q) @ q
    middle = mx.tril(middle) + transposed(mx.tril(middle, -1))
    return (to_q + q @ middle) @ transposed(_inverse(r))


def _qr_gradient(cotangents: Any, results: Any, x: mx.array) -> mx.array:
    """Roberts and Roberts 2020 for wide matrices: the square in front decides."""
    (to_q, to_r), (q, r) = cotangents, results
    rows = x.shape[-2]
    if x.shape[-1] <= rows:
        return _square_gradient(to_q, to_r, q, r)
    behind = to_r[..., rows:]
    to_q = to_q + x[..., rows:] @ transposed(behind)
    front = _square_gradient(to_q, to_r[..., :rows], q, r[..., :rows])
    return mx.concatenate([front, q @ behind], axis=-1)


def _thin_qr(x: mx.array) -> Pair:
    count = min(x.shape[-2:])
    if not x.size:
        shape = x.shape[:-2]
        return (
            mx.zeros((*shape, x.shape[-2], count), x.dtype),
            mx.zeros((*shape, count, x.shape[-1]), x.dtype),
        )
    q, r = mx.linalg.qr(x)
    return q[..., :count], r[..., :count, :]


_qr = differentiable(_thin_qr, _qr_gradient)


@operation("linalg_qr")
@precise
def _linalg_qr(A: mx.array, mode: Literal["reduced", "r"] = "reduced") -> Pair:
    q, r = _qr(A)
    return (mx.zeros((0,), A.dtype), r) if mode == "r" else (q, r)


def _flag(x: mx.array) -> mx.array:
    return mx.zeros(x.shape[:-2], mx.int32)


register(
    {
        "cholesky": lambda self, upper=False: cholesky(self, upper=upper),
        "linalg_cholesky": lambda self, upper=False: cholesky(self, upper=upper),
        "linalg_cholesky_ex": lambda self, upper=False: (cholesky(self, upper=upper), _flag(self)),
    }
)
