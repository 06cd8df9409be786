"""The textbook definitions, bar by bar in float64: written from their sources, not from our code."""

from __future__ import annotations

import itertools
import math

NAN = math.nan


def sma(x, bars):
    return [
        NAN if t < bars - 1 else math.fsum(x[t - bars + 1 : t + 1]) / bars for t in range(len(x))
    ]


def recursive(x, bars, weight):
    """Return the average begun with the plain mean of the first BARS values of X that are not NaN."""
    values, mean, seen = [], NAN, []
    for value in x:
        if math.isnan(value):
            values.append(NAN)
            continue
        seen.append(value)
        if len(seen) == bars:
            mean = math.fsum(seen) / bars
        elif len(seen) > bars:
            mean += weight * (value - mean)
        values.append(mean)
    return values


def ema(x, bars):
    return recursive(x, bars, 2 / (bars + 1))


def rsi(close, bars):
    gains, losses = [NAN], [NAN]
    for before, now in itertools.pairwise(close):
        gains.append(max(now - before, 0.0))
        losses.append(max(before - now, 0.0))
    values = []
    for gain, loss in zip(
        recursive(gains, bars, 1 / bars), recursive(losses, bars, 1 / bars), strict=True
    ):
        if math.isnan(gain):
            values.append(NAN)
        elif gain + loss == 0:
            values.append(50.0)
        else:  # Wilder: 100 - 100 / (1 + gain / loss)
            values.append(100 - 100 / (1 + gain / loss) if loss else 100.0)
    return values


def macd(close, fast, slow, signal):
    line = [a - b for a, b in zip(ema(close, fast), ema(close, slow), strict=True)]
    mean = ema(line, signal)
    return line, mean, [a - b for a, b in zip(line, mean, strict=True)]


def bollinger(close, bars, deviations):
    rows = []
    for t, middle in enumerate(sma(close, bars)):
        if math.isnan(middle):
            rows.append((NAN,) * 5)
            continue
        window = close[t - bars + 1 : t + 1]
        reach = deviations * math.sqrt(math.fsum((x - middle) ** 2 for x in window) / bars)
        place = (close[t] - middle + reach) / (2 * reach) if reach else 0.5
        rows.append((middle - reach, middle, middle + reach, place, 2 * reach / middle))
    return list(zip(*rows, strict=True))


def true_range(high, low, close):
    rows = zip(high[1:], low[1:], close, strict=False)
    return [NAN] + [max(top - end, abs(top - was), abs(end - was)) for top, end, was in rows]


def atr(high, low, close, bars):
    return recursive(true_range(high, low, close), bars, 1 / bars)


def obv(close, volume):
    total, values = 0.0, [0.0]
    for t in range(1, len(close)):
        if close[t] > close[t - 1]:
            total += volume[t]
        elif close[t] < close[t - 1]:
            total -= volume[t]
        values.append(total)
    return values


def anchored_vwap(high, low, close, volume, every):
    values = []
    for t in range(len(close)):
        if t % every == 0:
            money, traded = 0.0, 0.0
        price = (high[t] + low[t] + close[t]) / 3
        money, traded = money + price * volume[t], traded + volume[t]
        values.append(money / traded if traded else price)
    return values
