"""Reducing into places by index. MLX's own writes know no gradient of a product, or of equal extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from ...dtypes import is_float
from ..axes import axis_of
from ..registry import operation
from .scattering import grid_of, region_of

Key = tuple[mx.array, ...]


class _Parts(NamedTuple):
    """What is reduced: what lies there (KEPT says where it counts), and what is written to KEY."""

    there: mx.array
    kept: mx.array
    written: mx.array
    key: Key

    def counts(self) -> mx.array:
        """Return how many elements each place is made of."""
        ones = mx.ones(self.written.shape, self.there.dtype)
        return self.kept.astype(self.there.dtype).at[self.key].add(ones)


def _linear(value: mx.array, parts: _Parts, shares: tuple[mx.array, mx.array]) -> mx.array:
    """Return VALUE with the gradients SHARES: of what was there, and of what is written."""
    if not is_float(value):
        return value
    moves = [
        mx.where(mx.logical_and(mx.isfinite(x), share != 0), (x - mx.stop_gradient(x)) * share, 0)
        for x, share in zip(
            (parts.there, parts.written), map(mx.stop_gradient, shares), strict=True
        )
    ]
    return mx.stop_gradient(value) + moves[0].at[parts.key].add(moves[1])


def _sum(parts: _Parts) -> mx.array:
    start = mx.where(parts.kept, parts.there, mx.zeros_like(parts.there))
    return start.at[parts.key].add(parts.written)


def _mean(parts: _Parts) -> mx.array:
    total, counts = _sum(parts), mx.maximum(parts.counts(), 1)
    return total / counts if is_float(total) else total // counts


def _extreme(write: str, worst: Callable[[mx.Dtype], float]) -> Callable[[_Parts], mx.array]:
    """Make the reduction by maximum or minimum: equal elements share the gradient."""

    def reduce(parts: _Parts) -> mx.array:
        dtype = parts.there.dtype
        start = mx.where(parts.kept, parts.there, mx.array(worst(dtype), dtype))
        best = mx.stop_gradient(getattr(start.at[parts.key], write)(parts.written))
        if not is_float(best):
            return best
        own = (parts.there == best).astype(dtype)  # torch counts it even where it is not kept
        theirs = (parts.written == best[parts.key]).astype(dtype)
        total = mx.maximum(own.at[parts.key].add(theirs), 1)
        return _linear(
            best, parts, (mx.where(parts.kept, own / total, 0), theirs / total[parts.key])
        )

    return reduce


def _product(parts: _Parts) -> mx.array:
    """Multiply; the gradient of a factor is the product of the others, zeros among them or not."""
    one = mx.ones_like(parts.there)
    start = mx.where(parts.kept, parts.there, one)
    value = start.at[parts.key].multiply(parts.written)
    if not is_float(value):
        return value
    zeros = [start == 0, parts.written == 0]
    found = zeros[0].astype(mx.int32).at[parts.key].add(zeros[1].astype(mx.int32))
    others = mx.where(zeros[0], one, start)
    others = others.at[parts.key].multiply(mx.where(zeros[1], 1, parts.written))
    shares = [
        mx.where(count - zero > 0, 0, rest / mx.where(zero, 1, x))
        for x, zero, count, rest in (
            (start, zeros[0], found, others),
            (parts.written, zeros[1], found[parts.key], others[parts.key]),
        )
    ]
    return _linear(value, parts, (mx.where(parts.kept, shares[0], 0), shares[1]))


def _bounds(dtype: mx.Dtype) -> tuple[float, float]:
    """Return the smallest and the largest number of DTYPE."""
    if mx.issubdtype(dtype, mx.floating):
        return -float("inf"), float("inf")
    limits = mx.iinfo(dtype)
    return int(limits.min), int(limits.max)


_REDUCTIONS = {
    "sum": _sum,
    "mean": _mean,
    "prod": _product,
    "amax": _extreme("maximum", lambda dtype: _bounds(dtype)[0]),
    "amin": _extreme("minimum", lambda dtype: _bounds(dtype)[1]),
}


def _reduced(x: mx.array, key: Key, written: mx.array, reduce: str, include_self: bool) -> mx.array:
    """Reduce WRITTEN into X at KEY; what nothing is written to stays."""
    kept = mx.ones(x.shape, mx.bool_)
    if not include_self:
        kept = mx.zeros(x.shape, mx.int32).at[key].add(mx.ones(written.shape, mx.int32)) == 0
    return _REDUCTIONS[reduce](_Parts(x, kept, written.astype(x.dtype), key))


@operation("scatter_reduce.two")
def _scatter_reduce(
    self: mx.array,
    dim: int,
    index: mx.array,
    src: mx.array,
    reduce: str,
    include_self: bool = True,
) -> mx.array:
    x, index, src = (a if a.ndim else a.reshape(1) for a in (self, index, src))
    made = _reduced(x, grid_of(x, dim, index), region_of(src, index), reduce, include_self)
    return made.reshape(self.shape)


@operation("scatter.reduce", "scatter.value_reduce")
def _scatter_with(
    self: mx.array,
    dim: int,
    index: mx.array,
    reduce: str,
    src: mx.array | None = None,
    value: float = 0,
) -> mx.array:
    """Add or multiply into what is there; torch's older way to say so."""
    src = mx.full(index.shape, value, self.dtype) if src is None else src
    return _scatter_reduce(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@operation("index_reduce")
def _index_reduce(
    self: mx.array,
    dim: int,
    index: mx.array,
    source: mx.array,
    reduce: str,
    include_self: bool = True,
) -> mx.array:
    x = self if self.ndim else self.reshape(1)
    axis = axis_of(x, dim)
    rows = source.reshape(*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    wide = index.reshape(-1, *[1] * (x.ndim - 1 - axis))
    key = grid_of(x, axis, mx.broadcast_to(wide, rows.shape))
    return _reduced(x, key, rows, reduce, include_self).reshape(self.shape)
