"""Counts drawn from ``mx.random``: of Poisson's and of the binomial distribution, as torch's by distribution.

Small expectations are looked up in the cumulative sums of the probabilities; above ``SMALL`` candidates are drawn
and rejected until one is taken, by Hörmann 1993 ("The transformed rejection method for generating Poisson random
variables", PTRS) and Hörmann 1993 ("The generation of binomial random variates", BTRS). The gradient of Poisson's is 0,
as in torch, which refuses that of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import mlx.core as mx

from ......errors import UnsupportedError
from ..gradients import with_gradient
from ..registry import operation
from .distributions import first_taken, open_uniform
from .special import lgamma

SMALL: Final = 10.0  # expectations, up to which all counts that occur are looked at
COUNTS: Final = 64  # beyond which a count of a small expectation has a chance below 1e-28
_HALF_LOG: Final = 0.5 * math.log(2 * math.pi)
TRIES: Final = 32  # each is taken more often than in 3 of 4 times


def _looked_up(log_first: mx.array, log_ratio: Callable[[mx.array], mx.array]) -> mx.array:
    """Draw counts of which 0 has the chance exp(LOG_FIRST), and k + 1 that of k times exp(LOG_RATIO(k))."""
    steps = mx.broadcast_to(
        log_ratio(mx.arange(COUNTS).astype(mx.float32)), (*log_first.shape, COUNTS)
    )
    logs = log_first[..., None] + mx.cumsum(steps, axis=-1)
    chances = mx.concatenate([mx.exp(log_first)[..., None], mx.exp(logs)], axis=-1)
    reached = open_uniform(log_first.shape, mx.float32)[..., None] > mx.cumsum(chances, axis=-1)
    return mx.sum(reached, axis=-1).astype(mx.float32)


@operation("poisson")
def _poisson(self: mx.array) -> mx.array:
    rate = mx.stop_gradient(self.astype(mx.float32))
    few, many = mx.minimum(rate, SMALL), mx.maximum(rate, SMALL)
    log_rate = mx.log(few)[..., None]
    small = _looked_up(-few, lambda k: log_rate - mx.log(k + 1))
    return mx.where(rate < SMALL, small, _large_poisson(many)).astype(self.dtype)


def _large_poisson(rate: mx.array) -> mx.array:
    """PTRS."""
    b = 0.931 + 2.53 * mx.sqrt(rate)
    a = -0.059 + 0.02483 * b
    u, v, inner = _pairs(rate.shape)
    k = mx.floor((2 * a / inner + b) * u + rate + 0.43)
    quick = mx.logical_and(inner >= 0.07, v <= 0.9277 - 3.6224 / (b - 2))
    bound = mx.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (inner * inner) + b))
    inside = mx.logical_and(k >= 0, mx.logical_or(inner >= 0.013, v <= inner))
    at = mx.maximum(k, 0)
    far = at + 1 - rate
    chance = far - at * mx.log1p(far / rate) - 0.5 * mx.log(at + 1) - _HALF_LOG - _tail(at)
    return first_taken(k, mx.logical_or(quick, mx.logical_and(inside, bound <= chance)))


def _pairs(shape: tuple[int, ...]) -> tuple[mx.array, mx.array, mx.array]:
    """Return numbers of -1/2 to 1/2, of 0 to 1, and how far the former are from their ends, for all tries."""
    u = open_uniform((TRIES, *shape), mx.float32) - 0.5
    return u, open_uniform((TRIES, *shape), mx.float32), 0.5 - mx.abs(u)


def _refused(*_: mx.array) -> mx.array:
    raise UnsupportedError(
        "torch.binomial has no gradient in PyTorch: draw inside torch.no_grad, or from what is detached"
    )


@operation("binomial")
def _binomial(count: mx.array, prob: mx.array) -> mx.array:
    result: mx.array = with_gradient(_drawn, _refused)(count, prob)
    return result


def _drawn(count: mx.array, prob: mx.array) -> mx.array:
    n, p = (x.astype(mx.float32) for x in mx.broadcast_arrays(count, prob))
    rarer = mx.minimum(p, 1 - p)
    few = n * rarer < SMALL
    log_odds = (mx.log(rarer) - mx.log1p(-rarer))[..., None]

    def log_ratio(k: mx.array) -> mx.array:
        left = n[..., None] - k
        return mx.where(left > 0, mx.log(mx.maximum(left, 1) / (k + 1)) + log_odds, -math.inf)

    small = _looked_up(n * mx.log1p(-mx.where(few, rarer, 0)), log_ratio)
    whole = mx.where(few, 4 * SMALL, n)  # so that nothing is undefined where it is not taken
    large = _large_binomial(whole, mx.where(few, 0.5, rarer))
    successes = mx.where(few, small, large)
    return mx.where(p > 0.5, n - successes, successes).astype(count.dtype)


def _large_binomial(n: mx.array, p: mx.array) -> mx.array:
    """BTRS for P up to 1/2; the chance of a count is taken relative to that of the most likely one."""
    spread = mx.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * p
    u, v, inner = _pairs(n.shape)
    k = mx.floor((2 * a / inner + b) * u + n * p + 0.5)
    quick = mx.logical_and(inner >= 0.07, v <= 0.92 - 4.2 / b)
    bound = mx.log(v * (2.83 + 5.1 / b) * spread / (a / (inner * inner) + b))
    likeliest = mx.floor((n + 1) * p)
    inside = mx.logical_and(k >= 0, k <= n)
    at = mx.where(inside, k, likeliest)
    chance = _against(n, at, likeliest, mx.log(p) - mx.log1p(-p))
    return first_taken(k, mx.logical_and(inside, mx.logical_or(quick, bound <= chance)))


def _against(n: mx.array, k: mx.array, m: mx.array, log_odds: mx.array) -> mx.array:
    """Return the logarithm of the chance of K against that of M, near it: differences alone, which round less."""
    far = m - k
    steps = (m + 0.5) * mx.log1p(far / (k + 1)) - (n - m + 0.5) * mx.log1p(far / (n - m + 1))
    steps = steps - far * (log_odds + mx.log((n - k + 1) / (k + 1)))
    return steps + _tail(m) + _tail(n - m) - _tail(k) - _tail(n - k)


def _tail(x: mx.array) -> mx.array:
    """Return what Stirling's formula lacks: log(X!) less (x + 1/2) log(x + 1) - (x + 1) + log(2 pi) / 2."""
    y = x + 1
    exact = lgamma(y) - ((x + 0.5) * mx.log(y) - y + _HALF_LOG)
    return mx.where(x < SMALL, exact, (1 / 12 - 1 / 360 / (y * y)) / y)
