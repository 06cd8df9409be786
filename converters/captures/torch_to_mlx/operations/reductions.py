"""Reductions, cumulative sums and differences; the operand is cast to the result's dtype first, as torch sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .axes import Axes, along, at, axes_of, axis_of
from .distances import safe_root, squared
from .elementwise.elementary import exp, softmax
from .gradients import holomorphic, with_gradient
from .registry import operation, register

Reduction = Callable[..., mx.array]


def _over(function: Reduction) -> Callable[..., mx.array]:
    """Make FUNCTION take torch's ``dim`` and ``keepdim``."""

    def reduce(self: mx.array, dim: Axes = None, keepdim: bool = False) -> mx.array:
        return function(self, axis=axes_of(self, dim), keepdims=keepdim) if self.ndim else self

    return reduce


_sum, _mean, _max, _min = _over(mx.sum), _over(mx.mean), _over(mx.max), _over(mx.min)

register(
    {
        "sum sum.dim_IntList": _sum,
        "mean mean.dim": _mean,
        "prod prod.dim_int": _over(mx.prod),
        "amax max": _max,
        "amin min": _min,
        "any any.dim any.dims": _over(mx.any),
        "all all.dim all.dims": _over(mx.all),
        "cumsum": lambda self, dim: along(self, dim, lambda x, axis: mx.cumsum(x, axis=axis)),
        "cumprod": lambda self, dim: along(self, dim, _products),
        "logcumsumexp": lambda self, dim: along(self, dim, _log_of_sums),
        "softmax.int _softmax": lambda self, dim: along(self, dim, _softmax),
        "log_softmax.int _log_softmax": lambda self, dim: along(self, dim, log_softmax),
    },
    promote="result",
)


def _products(x: mx.array, axis: int) -> mx.array:
    return holomorphic(lambda x: mx.cumprod(x, axis=axis))(x)


def _log_of_sums(x: mx.array, axis: int) -> mx.array:
    """Sum exponents; the gradient goes back from each element to the one before it, by shares of the sums."""
    if x.dtype == mx.complex64:
        top = mx.stop_gradient(mx.max(mx.real(x), axis=axis, keepdims=True)) if x.size else 0
        return mx.log(mx.cumsum(mx.exp(x - top), axis=axis)) + top

    def gradient(cotangent: mx.array, _: mx.array, x: mx.array) -> mx.array:
        if not x.size:
            return cotangent
        largest = mx.max(x, axis=axis, keepdims=True)
        largest = mx.where(mx.isfinite(largest), largest, 0)
        x = x - largest  # numbers far from zero are spaced widely
        before = _moved(_log_sums(x, axis), axis, 1, -math.inf)
        passed = _moved(mx.sigmoid(before - x), axis, -1, 0)
        step = 1
        while step < x.shape[axis]:
            cotangent = cotangent + passed * _moved(cotangent, axis, -step, 0)
            passed = passed * _moved(passed, axis, -step, 0)
            step *= 2
        return mx.sigmoid(x - before) * cotangent

    found: mx.array = with_gradient(lambda x: _log_sums(x, axis), gradient)(x)
    return found


def _log_sums(x: mx.array, axis: int) -> mx.array:
    """Return logarithms of running sums, of twice as many elements each time, so that they round little."""
    step = 1
    while step < x.shape[axis]:
        x = mx.logaddexp(x, _moved(x, axis, step, -math.inf))
        step *= 2
    return x


def _moved(x: mx.array, axis: int, steps: int, value: float) -> mx.array:
    """Move X along AXIS by STEPS, fewer than it has, and fill up with VALUE."""
    edge = at(x, axis, slice(0, abs(steps)))
    filled = mx.full(x[edge].shape, value, x.dtype)
    if steps > 0:
        return mx.concatenate([filled, x[at(x, axis, slice(0, -steps))]], axis)
    return mx.concatenate([x[at(x, axis, slice(-steps, None))], filled], axis)


def _softmax(x: mx.array, axis: int) -> mx.array:
    if not x.size:
        return x
    if axis == x.ndim - 1:
        return softmax(x)
    return mx.swapaxes(softmax(mx.swapaxes(x, axis, -1)), axis, -1)


@operation("diff", promote="result")
def _diff(
    self: mx.array,
    n: int = 1,
    dim: int = -1,
    prepend: mx.array | None = None,
    append: mx.array | None = None,
) -> mx.array:
    if n == 0:  # torch adds nothing then
        return self
    axis = axis_of(self, dim)
    made = mx.concatenate([x for x in (prepend, self, append) if x is not None], axis=axis)
    for _ in range(n):
        before = (slice(None),) * axis
        later, earlier = made[(*before, slice(1, None))], made[(*before, slice(None, -1))]
        made = later != earlier if made.dtype == mx.bool_ else later - earlier
    return made


def _real(x: mx.array) -> mx.array:
    return mx.real(x) if x.dtype == mx.complex64 else x


def logsumexp(x: mx.array, dim: Axes, keepdim: bool = False) -> mx.array:
    """Return log(sum(exp(X))) over DIM without overflow; minus infinity where all of X is."""
    top = mx.stop_gradient(mx.max(_real(x), axis=axes_of(x, dim), keepdims=True))
    top = mx.where(mx.isfinite(top), top, mx.zeros_like(top))
    total = mx.log(mx.sum(exp(x - top), axis=axes_of(x, dim), keepdims=True)) + top
    return total if keepdim else total.squeeze(axes_of(x, dim))


def log_softmax(x: mx.array, axis: int) -> mx.array:
    """Return log(softmax(X)) along AXIS."""
    return x - logsumexp(x, axis, keepdim=True) if x.size else x


@operation("logsumexp", promote="result")
def _logsumexp(self: mx.array, dim: Axes, keepdim: bool = False) -> mx.array:
    return logsumexp(self, dim, keepdim) if self.ndim else self


@operation("logaddexp", promote="result")
def _logaddexp(self: mx.array, other: mx.array) -> mx.array:
    complex_ = self.dtype == mx.complex64
    return logsumexp(mx.stack([self, other]), 0) if complex_ else mx.logaddexp(self, other)


@operation("_safe_softmax", promote="result")
def _safe_softmax(self: mx.array, dim: int) -> mx.array:
    """Give 0, not nan, where every entry is minus infinity."""
    dead = mx.max(self, axis=dim, keepdims=True) == -math.inf
    zeros = mx.zeros_like(self)
    return mx.where(dead, zeros, along(mx.where(dead, zeros, self), dim, _softmax))


def _variance(x: mx.array, dim: Axes, correction: float, keepdim: bool) -> mx.array:
    axes = axes_of(x, dim)
    centred = x - mx.mean(x, axis=axes, keepdims=True)
    count = math.prod(x.shape[axis] for axis in axes) - correction
    total = mx.sum(squared(centred), axis=axes, keepdims=keepdim)
    return total / mx.array(max(count, 0), total.dtype)


def _root(total: mx.array) -> mx.array:
    return safe_root(mx.sqrt, total)


def _spread(power: Callable[[mx.array], mx.array], with_mean: bool) -> Callable[..., Any]:
    """Make the handler of ``var``, ``std``, ``var_mean`` or ``std_mean``."""

    def reduce(
        self: mx.array,
        dim: Axes = None,
        correction: float | None = None,
        unbiased: bool = True,
        keepdim: bool = False,
    ) -> Any:
        degrees = int(unbiased) if correction is None else correction
        spread = power(_variance(self, dim, degrees, keepdim))
        return (spread, _mean(self, dim, keepdim)) if with_mean else spread

    return reduce


register(
    {
        f"{_name} {_name}.dim {_name}.correction": _spread(_power, _name.endswith("_mean"))
        for _name, _power in {
            "var": lambda x: x,
            "std": _root,
            "var_mean": lambda x: x,
            "std_mean": _root,
        }.items()
    }
)


def _picked(pick: Callable[..., mx.array]) -> Callable[..., tuple[mx.array, mx.array]]:
    """Make ``max.dim`` of ``argmax``: values and where they are, gradients to the place picked."""

    def reduce(self: mx.array, dim: int, keepdim: bool = False) -> tuple[mx.array, mx.array]:
        if not self.ndim:
            return self, mx.array(0, mx.int64)
        axis = axis_of(self, dim)
        index = mx.stop_gradient(pick(self, axis=axis, keepdims=True))
        values = mx.take_along_axis(self, index, axis=axis)
        return (values, index) if keepdim else (values.squeeze(axis), index.squeeze(axis))

    return reduce


def _position(pick: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def reduce(self: mx.array, dim: int | None = None, keepdim: bool = False) -> mx.array:
        if dim is None or not self.ndim:
            index = pick(self.reshape(-1))
            index = index.reshape([1] * self.ndim) if keepdim else index
        else:
            index = pick(self, axis=axis_of(self, dim), keepdims=keepdim)
        return index

    return reduce


register(
    {
        "max.dim": _picked(mx.argmax),
        "min.dim": _picked(mx.argmin),
        "argmax": _position(mx.argmax),
        "argmin": _position(mx.argmin),
    }
)
