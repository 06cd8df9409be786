"""Eight indicators of technical analysis, each over all symbols at once.

Prices and volumes have shape ``(symbols, bars)``, results too. A bar for which there is no value yet is NaN, and
nothing else is: constant prices and bars without trade have the values that are said below.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from .scans import after, rolling_moments, smoothed


class Bars(NamedTuple):
    """Prices and volumes, each of shape ``(symbols, bars)``, without gaps."""

    open: mx.array
    high: mx.array
    low: mx.array
    close: mx.array
    volume: mx.array


def sma(x: mx.array, bars: int) -> mx.array:
    """Return the simple moving average; the first value is that of bar ``bars - 1``."""
    return rolling_moments(x, bars)[0]


def ema(x: mx.array, bars: int) -> mx.array:
    """Return the exponential moving average of weight ``2 / (bars + 1)``, begun with the first simple one."""
    return smoothed(x, bars, 2 / (bars + 1))


def rsi(close: mx.array, bars: int = 14) -> mx.array:
    """Return the relative strength index, 0 to 100 (Wilder 1978); the first value is that of bar BARS.

    ``100 * gains / (gains + losses)``, both smoothed with weight ``1 / bars``. Where prices have not moved at
    all it is 50.
    """
    change = close[:, 1:] - close[:, :-1]
    gains, losses = (smoothed(mx.maximum(part, 0), bars, 1 / bars) for part in (change, -change))
    return after(1, _ratio(100 * gains, gains + losses, 50.0))


class Macd(NamedTuple):
    """Convergence and divergence of moving averages."""

    line: mx.array
    signal: mx.array
    histogram: mx.array


def macd(close: mx.array, fast: int = 12, slow: int = 26, signal: int = 9) -> Macd:
    """Return the difference of two exponential averages, its own average, and how far they part (Appel 1979)."""
    line = ema(close, fast) - ema(close, slow)
    mean = after(slow - 1, ema(line[:, slow - 1 :], signal))
    return Macd(line, mean, line - mean)


class Bollinger(NamedTuple):
    """Bollinger's bands (2002).

    Attributes:
        lower: the lower band.
        middle: the simple moving average.
        upper: the upper band.
        place: where the price is, 0 at the lower and 1 at the upper band (%b); 0.5 where they are one.
        width: of the bands as a part of the middle.
    """

    lower: mx.array
    middle: mx.array
    upper: mx.array
    place: mx.array
    width: mx.array


def bollinger(close: mx.array, bars: int = 20, deviations: float = 2.0) -> Bollinger:
    """Return the bands DEVIATIONS standard deviations (of BARS values, not of a sample) around the mean."""
    middle, variance = rolling_moments(close, bars)
    reach = deviations * mx.sqrt(variance)
    lower, upper = middle - reach, middle + reach
    place = _ratio(close - lower, 2 * reach, 0.5)
    return Bollinger(lower, middle, upper, place, 2 * reach / middle)


def atr(bars: Bars, length: int = 14) -> mx.array:
    """Return the average true range (Wilder 1978); the first value is that of bar LENGTH.

    The true range begins with the second bar: it needs the close before.
    """
    before = bars.close[:, :-1]
    high, low = (mx.maximum(bars.high[:, 1:], before), mx.minimum(bars.low[:, 1:], before))
    return after(1, smoothed(high - low, length, 1 / length))


def signed_volume(bars: Bars) -> mx.array:
    """Return the volume with the sign of the price's change, 0 at the first bar."""
    change = bars.close[:, 1:] - bars.close[:, :-1]
    return mx.pad(mx.sign(change) * bars.volume[:, 1:], [(0, 0), (1, 0)])


def obv(bars: Bars) -> mx.array:
    """Return on-balance volume (Granville 1963): volume summed with the sign of the price's change."""
    return mx.cumsum(signed_volume(bars), axis=1)


def anchored_vwap(bars: Bars, every: int) -> mx.array:
    """Return the mean price since the last anchor, weighted by volume; an anchor stands at every EVERY bars.

    The price is ``(high + low + close) / 3``. Until something is traded after an anchor it is that price itself.
    """
    typical = (bars.high + bars.low + bars.close) / 3
    symbols, count = typical.shape
    periods = -(-count // every)

    def since_anchor(x: mx.array) -> mx.array:
        padded = mx.pad(x, [(0, 0), (0, periods * every - count)])
        sums = mx.cumsum(padded.reshape(symbols, periods, every), axis=2)
        return sums.reshape(symbols, periods * every)[:, :count]

    # Distances from the first one are summed: smaller numbers lose fewer digits.
    start = typical[:, :1]
    traded = since_anchor((typical - start) * bars.volume)
    return start + _ratio(traded, since_anchor(bars.volume), typical - start)


def _ratio(part: mx.array, whole: mx.array, otherwise: mx.array | float) -> mx.array:
    """Return PART / WHOLE, and OTHERWISE where WHOLE is 0."""
    nothing = whole == 0
    return mx.where(nothing, otherwise, part / mx.where(nothing, 1, whole))
