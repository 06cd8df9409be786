"""What depends on the order of elements: medians, k-th values, modes and running extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from ..dtypes import is_float
from .axes import axis_of
from .registry import register

Pair = tuple[mx.array, mx.array]


def _at(x: mx.array, index: mx.array, axis: int, keepdim: bool) -> Pair:
    """Return what lies at INDEX, of size 1 along AXIS, and INDEX: gradients go there."""
    index = mx.stop_gradient(index)
    values = mx.take_along_axis(x, index, axis=axis)
    return (values, index) if keepdim else (values.squeeze(axis), index.squeeze(axis))


def _ranked(choose: Callable[..., mx.array]) -> Callable[..., Pair]:
    """Make a handler of CHOOSE (array, axis, ...) -> index of the element, of size 1 along the axis."""

    def pick(self: mx.array, *given: Any, dim: int = -1, keepdim: bool = False) -> Pair:
        if not self.ndim:
            return self, mx.array(0, mx.int64)
        axis = axis_of(self, dim)
        return _at(self, choose(mx.stop_gradient(self), axis, *given), axis, keepdim)

    return pick


def _nans(x: mx.array) -> mx.array:
    return mx.isnan(x) if is_float(x) else mx.zeros(x.shape, mx.bool_)


def _median_index(x: mx.array, axis: int) -> mx.array:
    """Return where the lower median is; a NaN where there is one."""
    order = mx.argsort(x, axis=axis)
    middle = mx.take(order, mx.array([(x.shape[axis] - 1) // 2]), axis=axis)
    nans = _nans(x)
    first = mx.argmax(nans, axis=axis, keepdims=True)
    return mx.where(mx.any(nans, axis=axis, keepdims=True), first, middle)


def _nanmedian_index(x: mx.array, axis: int) -> mx.array:
    order = mx.argsort(x, axis=axis)  # NaN is last
    count = mx.sum(~_nans(x), axis=axis, keepdims=True)
    return mx.take_along_axis(order, mx.maximum(count - 1, 0) // 2, axis=axis)


def _kth_index(x: mx.array, axis: int, k: int) -> mx.array:
    return mx.take(mx.argsort(x, axis=axis), mx.array([k - 1]), axis=axis)


def _mode_index(x: mx.array, axis: int) -> mx.array:
    """Return the last place of the smallest among the most frequent values."""
    moved = mx.moveaxis(x, axis, -1)
    same = moved[..., :, None] == moved[..., None, :]
    often = mx.sum(same, axis=-1)
    candidates = often == mx.max(often, axis=-1, keepdims=True)
    order = mx.argsort(mx.argsort(moved, axis=-1), axis=-1)  # ranks: equal values have neighbours
    first = mx.argmin(mx.where(candidates, order, moved.shape[-1]), axis=-1, keepdims=True)
    value = mx.take_along_axis(moved, first, axis=-1)
    places = mx.where(moved == value, mx.arange(moved.shape[-1]), -1)
    return mx.moveaxis(mx.max(places, axis=-1, keepdims=True), -1, axis)


_median, _nanmedian = _ranked(_median_index), _ranked(_nanmedian_index)
_kth, _mode = _ranked(_kth_index), _ranked(_mode_index)
register(
    {
        "median.dim": lambda self, dim, keepdim=False: _median(self, dim=dim, keepdim=keepdim),
        "nanmedian.dim": lambda self, dim, keepdim=False: _nanmedian(
            self, dim=dim, keepdim=keepdim
        ),
        "kthvalue": lambda self, k, dim=-1, keepdim=False: _kth(self, k, dim=dim, keepdim=keepdim),
        "mode": lambda self, dim=-1, keepdim=False: _mode(self, dim=dim, keepdim=keepdim),
        "median": lambda self: _shared(self, _median(self.reshape(-1))[0]),
        "nanmedian": lambda self: _shared(self, _nanmedian(self.reshape(-1))[0]),
    }
)


def _shared(x: mx.array, value: mx.array) -> mx.array:
    """Return VALUE with its gradient shared evenly among the elements of X that equal it."""
    if not is_float(x):
        return value
    value = mx.stop_gradient(value)
    equal = mx.stop_gradient((x == value) | (mx.isnan(x) & mx.isnan(value)))
    own = mx.where(equal, x - mx.stop_gradient(x), mx.zeros_like(x))
    own = mx.where(mx.isfinite(own), own, mx.zeros_like(own))
    return value + mx.sum(own) / mx.sum(equal).astype(x.dtype)


def _running(extreme: Callable[..., mx.array], worst: float) -> Callable[..., Pair]:
    """Make ``cummax`` or ``cummin``: the latest place of the extreme so far, NaN being extreme."""

    def run(self: mx.array, dim: int) -> Pair:
        if not self.ndim:
            return self, mx.array(0, mx.int64)
        axis = axis_of(self, dim)
        x, nans = mx.stop_gradient(self), _nans(self)
        x = mx.where(nans, mx.array(worst, x.dtype), x) if is_float(x) else x
        found = (x == extreme(x, axis=axis)) & ~mx.cummax(nans.astype(mx.int32), axis=axis).astype(
            mx.bool_
        )
        places = mx.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        index = mx.cummax(mx.where(found | nans, places, mx.zeros_like(places)), axis=axis)
        return _at(self, index, axis, keepdim=True)

    return run


register({"cummax": _running(mx.cummax, math.inf), "cummin": _running(mx.cummin, -math.inf)})
