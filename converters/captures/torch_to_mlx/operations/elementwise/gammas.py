"""Draws of the gamma distribution and of Dirichlet's, from ``mx.random``: torch's by distribution, and differentiable.

Drawn by Marsaglia and Tsang 2000 ("A simple method for generating gamma variables"). The gradient of a draw x by the
parameter a is the implicit one, -(dF/da) / f at x of the distribution's F and density f (Figurnov et al. 2018), of
which the integral is summed here (``_summed``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import mlx.core as mx
import numpy as np

from ..gradients import with_gradient
from ..registry import operation, register
from .distributions import first_taken, open_uniform
from .special import digamma

TRIES: Final = 16  # each is taken more often than in 19 of 20 times
TINY: Final = 2.0**-126  # the least normal float32, below which torch gives no draw
_STEPS: Final = np.arange(-3.2, 2.6, 0.08)
_PLACES: Final = np.exp(np.pi / 2 * np.sinh(_STEPS))
_RULE: Final = (_PLACES, np.pi / 2 * np.cosh(_STEPS) * _PLACES * (_STEPS[1] - _STEPS[0]))


def _drawn(alpha: mx.array) -> mx.array:
    """Return the logarithms of draws with the shape ALPHA; below 1 from ALPHA + 1, times u^(1 / ALPHA)."""
    above = mx.where(alpha < 1, alpha + 1, alpha)
    d = above - 1 / 3
    x = mx.random.normal((TRIES, *alpha.shape))
    base = 1 + x / mx.sqrt(9 * d)
    cube = mx.maximum(base, TINY) ** 3
    log_u = mx.log(open_uniform((TRIES, *alpha.shape), mx.float32))
    taken = log_u < 0.5 * x * x + d * (1 - cube + 3 * mx.log(mx.maximum(base, TINY)))
    log_draw = mx.log(d) + mx.log(first_taken(cube, mx.logical_and(base > 0, taken)))
    boost = mx.log(open_uniform(alpha.shape, mx.float32)) / alpha
    return log_draw + mx.where(alpha < 1, boost, 0)


@operation("_standard_gamma")
def _standard_gamma(self: mx.array) -> mx.array:
    drawn = mx.maximum(mx.exp(_drawn(mx.stop_gradient(self.astype(mx.float32)))), TINY)
    drawn = drawn.astype(self.dtype)
    moved = with_gradient(lambda _: drawn, lambda g, _, shape: g * _gamma_slope(shape, drawn))
    result: mx.array = moved(self)
    return result


def _gamma_slope(self: mx.array, output: mx.array) -> mx.array:
    """Return how OUTPUT, a draw x of the gamma distribution, moves with its shape, SELF.

    With t = x e^-v below x, t = x (1 + v) above, f(t) / f(x) is elementary; the integral over all t is 0.
    """
    alpha, x = self.astype(mx.float32), output.astype(mx.float32)
    mean = mx.log(x) - digamma(alpha)

    def below(v: mx.array) -> mx.array:
        return mx.exp(-alpha * v - x * mx.expm1(-v)) * (mean - v)

    def above(v: mx.array) -> mx.array:
        far = mx.log1p(v)
        return -mx.exp((alpha - 1) * far - x * v) * (mean + far)

    slope: mx.array = -x * mx.where(x < alpha, _summed(below, x.ndim), _summed(above, x.ndim))
    return slope.astype(self.dtype)


def _summed(integrand: Callable[[mx.array], mx.array], axes: int) -> mx.array:
    """Return the integral of INTEGRAND, an array of so many AXES, from 0 to infinity.

    By the double exponential rule of Takahasi and Mori 1974.
    """
    v, weights = (mx.array(it.astype(np.float32)).reshape(-1, *[1] * axes) for it in _RULE)
    return mx.sum(weights * integrand(v), axis=0)


@operation("_sample_dirichlet")
def _sample_dirichlet(self: mx.array) -> mx.array:
    """Divide gamma draws by their sum, by logarithms: small shapes draw what float32 has not."""
    logs = _drawn(mx.stop_gradient(self.astype(mx.float32)))
    return mx.maximum(mx.softmax(logs, axis=-1), TINY).astype(self.dtype)


def _dirichlet_slope(x: mx.array, alpha: mx.array, total: mx.array) -> mx.array:
    """Return how a draw X of the beta distribution (ALPHA, TOTAL - ALPHA) moves with ALPHA, over 1 - X.

    With t = x e^-v below x, 1 - t = (1 - x) e^-v above.
    """
    beta, rest = total - alpha, 1 - x
    mean = digamma(total) - digamma(alpha)

    def below(v: mx.array) -> mx.array:
        share = x * -mx.expm1(-v) / rest
        return mx.exp(-alpha * v + (beta - 1) * mx.log1p(share)) * (mean + mx.log(x) - v)

    def above(v: mx.array) -> mx.array:
        share = rest * -mx.expm1(-v) / x
        at = mx.log1p(-rest * mx.exp(-v))
        return -mx.exp(-beta * v + (alpha - 1) * mx.log1p(share)) * (mean + at)

    lower = x * total < alpha
    return -mx.where(lower, x * _summed(below, x.ndim), rest * _summed(above, x.ndim)) / rest


register(
    {
        "_standard_gamma_grad": _gamma_slope,
        "_dirichlet_grad": _dirichlet_slope,
    }
)
