"""Norms and distances of any order, with gradient 0 where torch has it: at zero, not infinity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from .axes import Axes, axes_of
from .gradients import with_gradient, zero_where
from .registry import operation


def safe_root(root: Callable[..., mx.array], total: mx.array) -> mx.array:
    """Apply ROOT with gradient 0, not infinity, at 0: torch's subgradient of a norm."""
    zero = total == 0
    return mx.where(zero, total, root(mx.where(zero, mx.ones_like(total), total)))


def _is_complex(x: mx.array) -> bool:
    return bool(x.dtype == mx.complex64)


def squared(x: mx.array) -> mx.array:
    """Return the squares of X, of complex numbers those of their lengths."""
    if not _is_complex(x):
        return x * x
    real, imaginary = mx.real(x), mx.imag(x)
    return real * real + imaginary * imaginary


def _powers(x: mx.array, order: float) -> mx.array:
    """Return X, not negative, to the power of ORDER, with gradient 0 at 0."""
    zero = x == 0
    at_zero = mx.array(0.0 if order > 0 else math.inf, x.dtype)
    return mx.where(zero, at_zero, mx.power(mx.where(zero, mx.ones_like(x), x), order))


def _length(x: mx.array, axes: list[int]) -> mx.array:
    """Return the Euclidean norm of X over AXES, which stay; its gradient is 0 at 0."""

    def back(g: mx.array, length: mx.array, x: mx.array) -> mx.array:
        zero = length == 0
        return x * mx.where(zero, 0, g / mx.where(zero, 1, length))

    custom = with_gradient(lambda x: mx.sqrt(mx.sum(x * x, axis=axes, keepdims=True)), back)
    result: mx.array = custom(x)
    return result


def norm(x: mx.array, order: float, axes: list[int], keepdims: bool) -> mx.array:
    """Return the norm of ORDER over AXES; of order 0, how many are not 0."""
    where: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    size = safe_root(mx.sqrt, squared(x)) if _is_complex(x) else mx.abs(x)
    if math.isinf(order):
        return mx.max(size, **where) if order > 0 else mx.min(size, **where)
    if order == 0:
        return mx.sum((x != 0).astype(size.dtype), **where)
    if order == 1:
        return mx.sum(size, **where)
    if order == 2 and not _is_complex(x):
        length = _length(x, axes)
        return length if keepdims else length.squeeze(axes)
    if order == 2:
        return safe_root(mx.sqrt, mx.sum(squared(x), **where))
    total = mx.sum(_powers(size, order), **where)
    return safe_root(lambda t: mx.power(t, 1 / order), total)


@operation("linalg_vector_norm", promote="result")
def _vector_norm(
    self: mx.array, ord_: float = 2, dim: Axes = None, keepdim: bool = False
) -> mx.array:
    if not self.ndim:
        return norm(self.reshape(1), ord_, [0], keepdims=False)
    return norm(self, ord_, axes_of(self, dim), keepdim)


@operation("norm.ScalarOpt_dim", "norm.Scalar", promote="result")
def _norm(self: mx.array, p: float | None = 2, dim: Axes = None, keepdim: bool = False) -> mx.array:
    return _vector_norm(self, 2 if p is None else p, dim, keepdim)


def distance(gap: mx.array, order: float) -> mx.array:
    """Return the norm of GAP over its last axis; of a largest that several share, each has the gradient."""
    if not gap.shape[-1]:
        return mx.zeros(gap.shape[:-1], gap.dtype)
    if not math.isinf(order):
        return norm(gap, order, [gap.ndim - 1], keepdims=False)
    size = mx.abs(gap)
    top = mx.stop_gradient(mx.max(size, axis=-1, keepdims=True))
    own = zero_where(mx.stop_gradient(size) != top, size - mx.stop_gradient(size))
    return top.squeeze(-1) + mx.sum(own, axis=-1)


@operation("_cdist_forward", "cdist")
def _cdist(
    x1: mx.array,
    x2: mx.array,
    p: float = 2,
    compute_mode: int | None = None,  # noqa: ARG001 - a hint for speed
) -> mx.array:
    return distance(x1[..., :, None, :] - x2[..., None, :, :], p)


@operation("pdist", "_pdist_forward")
def _pdist(self: mx.array, p: float = 2) -> mx.array:
    """Return the distances of all pairs of rows, the first row's first."""
    first, second = (mx.array(index) for index in np.triu_indices(self.shape[0], 1))
    return distance(self[first] - self[second], p)
