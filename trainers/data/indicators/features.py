"""What a model is shown of every bar: indicators as numbers without a unit, alike for every price and volume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import mlx.core as mx

from . import formulas
from .formulas import Bars
from .scans import after, rolling_moments

LENGTH: Final = 20  # bars of averages, bands and volumes, and between two anchors
BOUND: Final = 8.0  # the largest value that a feature has

Feature = Callable[[Bars, mx.array], mx.array]


def _in_ranges(x: mx.array, atr: mx.array) -> mx.array:
    """Return X counted in average true ranges, 0 where prices stand still."""
    return mx.where(atr == 0, 0, x / mx.where(atr == 0, 1, atr))


def _change(bars: Bars, atr: mx.array) -> mx.array:
    return _in_ranges(after(1, bars.close[:, 1:] - bars.close[:, :-1]), atr)


def _range_ratio(_bars: Bars, atr: mx.array) -> mx.array:
    mean = after(14, formulas.sma(atr[:, 14:], LENGTH))
    return 10 * _in_ranges(atr - mean, mean)


def _signed_volume_ratio(bars: Bars, _atr: mx.array) -> mx.array:
    signed = rolling_moments(formulas.signed_volume(bars), LENGTH)[0]
    return _in_ranges(signed, rolling_moments(bars.volume, LENGTH)[0])


def _volume_ratio(bars: Bars, _atr: mx.array) -> mx.array:
    return mx.log1p(_in_ranges(bars.volume, formulas.sma(bars.volume, LENGTH))) - mx.log(
        mx.array(2.0)
    )


FEATURES: Final[dict[str, Feature]] = {
    "change": _change,
    "sma": lambda bars, atr: _in_ranges(bars.close - formulas.sma(bars.close, LENGTH), atr),
    "ema": lambda bars, atr: _in_ranges(bars.close - formulas.ema(bars.close, LENGTH), atr),
    "rsi": lambda bars, _: formulas.rsi(bars.close) / 25 - 2,
    "macd": lambda bars, atr: _in_ranges(formulas.macd(bars.close).line, atr),
    "macd_histogram": lambda bars, atr: _in_ranges(formulas.macd(bars.close).histogram, atr),
    "bollinger": lambda bars, _: 2 * formulas.bollinger(bars.close, LENGTH).place - 1,
    "atr": _range_ratio,
    "obv": _signed_volume_ratio,
    "anchored_vwap": lambda bars, atr: _in_ranges(
        bars.close - formulas.anchored_vwap(bars, LENGTH), atr
    ),
    "volume": _volume_ratio,
}


def features(bars: Bars) -> mx.array:
    """Return the features of every bar, shape ``(symbols, bars, features)``, within -8 and 8.

    Differences of prices are counted in average true ranges. Rows before :data:`.chunks.READY` have NaN, no other row has.
    """
    atr = formulas.atr(bars)
    columns = [make(bars, atr) for make in FEATURES.values()]
    return mx.clip(mx.stack(columns, axis=-1), -BOUND, BOUND)
