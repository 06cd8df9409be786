"""Special functions from elementary ones, good to float32; DLMF is the Digital Library of Mathematical Functions.

Gradients are those of torch's ``derivatives.yaml``, in the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Final

import mlx.core as mx

from ..gradients import elementwise, with_gradient
from ..registry import register

_SHIFT: Final = 8  # an argument this much larger is in reach of the asymptotic series
_LOG_PI: Final = math.log(math.pi)
# B(2k) / (2k (2k - 1)) and B(2k) / 2k, DLMF 5.11.1 and 5.11.2
_LGAMMA: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_DIGAMMA: Final = (1 / 12, -1 / 120, 1 / 252, -1 / 240)
# B(2k) / (2k)!, DLMF 25.11.5
_ZETA: Final = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)
_ZETA_TERMS: Final = 20


def _from_pole(x: mx.array) -> mx.array:
    """Return how far X is from the nearest integer: sines of pi X lose nothing then."""
    return x - mx.round(x)


def series(coefficients: Sequence[float], x: mx.array) -> mx.array:
    """Return the sum of c(k) x^k."""
    start = mx.full(x.shape, coefficients[-1], x.dtype)
    return reduce(lambda total, c: total * x + c, coefficients[-2::-1], start)


def _lgamma_above(x: mx.array) -> mx.array:
    """Stirling's series at X + 8, and back by the recurrence, for positive X."""
    small = x < _SHIFT
    bounded = mx.where(small, x, mx.ones_like(x))
    steps = reduce(lambda product, k: product * (bounded + k), range(1, _SHIFT), bounded)
    far = mx.where(small, x + _SHIFT, x)
    tail = series(_LGAMMA, 1 / (far * far)) / far
    value = (far - 0.5) * mx.log(far) - far + 0.5 * math.log(2 * math.pi) + tail
    value = mx.where(small, value - mx.log(steps), value)
    return mx.where(mx.isinf(x), x, value)


def _lgamma(x: mx.array) -> mx.array:
    reflected = _LOG_PI - mx.log(mx.abs(mx.sin(math.pi * _from_pole(x))))
    below = reflected - _lgamma_above(mx.where(x > 0.5, mx.ones_like(x), 1 - x))
    below = mx.where(mx.isinf(x), -x, below)
    return mx.where(x > 0.5, _lgamma_above(mx.where(x > 0.5, x, mx.ones_like(x))), below)


def _digamma_above(x: mx.array) -> mx.array:
    recurrence = reduce(lambda total, k: total + 1 / (x + k), range(1, _SHIFT), 1 / x)
    far = x + _SHIFT
    square = 1 / (far * far)
    return mx.log(far) - 0.5 / far - square * series(_DIGAMMA, square) - recurrence


def _digamma(x: mx.array) -> mx.array:
    above = _digamma_above(mx.where(x > 0, x, mx.ones_like(x)))
    below = _digamma_above(mx.where(x > 0, mx.ones_like(x), 1 - x))
    below = below - math.pi / mx.tan(math.pi * _from_pole(x))
    below = mx.where(mx.round(x) == x, mx.array(math.nan, x.dtype), below)
    at_zero = mx.where(x == 0, -1 / x, below)
    return mx.where(x > 0, above, at_zero)


def _zeta(s: mx.array, q: mx.array) -> mx.array:
    """Hurwitz's zeta function by Euler and Maclaurin, DLMF 25.11.5."""
    total = reduce(
        lambda sum_, k: sum_ + mx.power(q + k, -s), range(1, _ZETA_TERMS), mx.power(q, -s)
    )
    far = q + _ZETA_TERMS
    factor = s * mx.power(far, -s - 1)
    for k, coefficient in enumerate(_ZETA):
        total = total + coefficient * factor
        factor = factor * (s + 2 * k + 1) * (s + 2 * k + 2) / (far * far)
    value = total + mx.power(far, 1 - s) / (s - 1) + 0.5 * mx.power(far, -s)
    pole = (q <= 0) & (mx.floor(q) == q)
    value = mx.where(pole | (s == 1), mx.array(math.inf, q.dtype), value)
    undefined = (s < 1) | ((q <= 0) & ~pole & (mx.floor(s) != s))
    return mx.where(undefined, mx.array(math.nan, q.dtype), value)


zeta = elementwise(_zeta, lambda g, _, s, q: (None, -g * s * _zeta(s + 1, q)))


def _polygamma_plain(n: int, x: mx.array) -> mx.array:
    if n == 0:
        return _digamma(x)
    sign = -1.0 if n % 2 == 0 else 1.0
    return sign * math.factorial(n) * _zeta(mx.array(n + 1.0, x.dtype), x)


def polygamma(n: int, x: mx.array) -> mx.array:
    """Return the derivative of order N of the digamma function."""
    function = with_gradient(
        lambda y: _polygamma_plain(n, y), lambda g, _, y: g * _polygamma_plain(n + 1, y)
    )
    found: mx.array = function(x)
    return found


lgamma = elementwise(_lgamma, lambda g, _, x: g * _digamma(x))
digamma = elementwise(_digamma, lambda g, _, x: g * _polygamma_plain(1, x))


register(
    {
        "lgamma prims.lgamma.default": lgamma,
        "digamma special_digamma prims.digamma.default": digamma,
    },
    promote="result",
    arity=1,
)
register(
    {
        "special_zeta special_zeta.self_scalar special_zeta.other_scalar prims.zeta.default": zeta,
    },
    promote="result",
    arity=2,
)
register(
    {
        "polygamma special_polygamma": polygamma,
    },
    promote="result",
    arity=2,
)
