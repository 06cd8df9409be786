"""Every indicator against its textbook definition in float64, bar by bar."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support import indicators as reference
from weighbridge.trainers.data.indicators import formulas
from weighbridge.trainers.data.indicators.scans import decayed_sums, rolling_moments

ROUNDINGS = 64 * 2.0**-24  # what a sum over some hundred bars may lose in float32


@pytest.fixture
def bars(prices):
    return formulas.Bars(*(mx.array(prices[name]) for name in formulas.Bars._fields))


def agree(found: mx.array, wanted: list[list[float]], unit: np.ndarray) -> None:
    """Compare row by row: NaN where it belongs, the rest within roundings of UNIT, the size of what was summed."""
    found, wanted = np.array(found), np.array(wanted)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    assert (
        np.nan_to_num(np.abs(found - wanted)) <= ROUNDINGS * unit.reshape(len(wanted), -1)
    ).all()


def columns(prices, *names):
    return zip(*(prices[name].astype(np.float64).tolist() for name in names), strict=True)


PRICE = {
    "sma": (
        lambda b: formulas.sma(b.close, 20),
        lambda high, low, close, volume: reference.sma(close, 20),
    ),
    "ema": (
        lambda b: formulas.ema(b.close, 20),
        lambda high, low, close, volume: reference.ema(close, 20),
    ),
    "macd": (
        lambda b: formulas.macd(b.close).line,
        lambda high, low, close, volume: reference.macd(close, 12, 26, 9)[0],
    ),
    "macd signal": (
        lambda b: formulas.macd(b.close).signal,
        lambda high, low, close, volume: reference.macd(close, 12, 26, 9)[1],
    ),
    "macd histogram": (
        lambda b: formulas.macd(b.close).histogram,
        lambda high, low, close, volume: reference.macd(close, 12, 26, 9)[2],
    ),
    "lower band": (
        lambda b: formulas.bollinger(b.close).lower,
        lambda high, low, close, volume: reference.bollinger(close, 20, 2)[0],
    ),
    "upper band": (
        lambda b: formulas.bollinger(b.close).upper,
        lambda high, low, close, volume: reference.bollinger(close, 20, 2)[2],
    ),
    "atr": (formulas.atr, lambda high, low, close, volume: reference.atr(high, low, close, 14)),
    "anchored vwap": (
        lambda b: formulas.anchored_vwap(b, 20),
        lambda high, low, close, volume: reference.anchored_vwap(high, low, close, volume, 20),
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), PRICE.values(), ids=PRICE)
def test_an_indicator_in_prices_is_that_of_its_definition(bars, prices, ours, theirs):
    wanted = [theirs(*row) for row in columns(prices, "high", "low", "close", "volume")]
    agree(ours(bars), wanted, prices["high"].max(axis=1))


@pytest.mark.parametrize("length", [2, 14, 29])
def test_rsi_is_that_of_its_definition(bars, prices, length):
    wanted = [reference.rsi(close, length) for (close,) in columns(prices, "close")]
    agree(formulas.rsi(bars.close, length), wanted, np.full(len(wanted), 100))


def test_on_balance_volume_is_that_of_its_definition(bars, prices):
    wanted = [reference.obv(*row) for row in columns(prices, "close", "volume")]
    agree(formulas.obv(bars), wanted, prices["volume"].sum(axis=1))


def test_places_between_the_bands_are_those_of_their_definition(bars, prices):
    found = formulas.bollinger(bars.close)
    wanted = [reference.bollinger(close, 20, 2) for (close,) in columns(prices, "close")]
    widths = np.array(wanted)[:, 4]  # narrow bands magnify the roundings of prices
    agree(found.place, [row[3] for row in wanted], 1 / np.where(widths > 0, widths, 1))
    agree(found.width, [row[4] for row in wanted], np.ones(len(wanted)))


def test_values_of_a_market_that_stands_still_are_defined(bars):
    row = 3  # of the symbol whose price never moves
    assert np.array(formulas.rsi(bars.close))[row, 14:] == pytest.approx(50)
    assert np.array(formulas.bollinger(bars.close).place)[row, 19:] == pytest.approx(0.5)
    assert np.array(formulas.atr(bars))[row, 14:] == pytest.approx(0)
    assert np.array(formulas.anchored_vwap(bars, 20))[row] == pytest.approx(50)


@given(
    x=arrays.arrays(np.float32, (2, 40), elements=st.floats(-100, 100, width=32)),
    bars=st.integers(1, 40),
)
def test_rolling_moments_are_those_of_every_window(x, bars):
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), bars, axis=1)
    mean, variance = (np.array(it)[:, bars - 1 :] for it in rolling_moments(mx.array(x), bars))
    np.testing.assert_allclose(mean, windows.mean(-1), atol=100 * ROUNDINGS)
    np.testing.assert_allclose(variance, windows.var(-1), atol=1e4 * ROUNDINGS)


@given(
    x=arrays.arrays(np.float32, (2, 70), elements=st.floats(-1, 1, width=32)),
    decay=st.floats(0, 1),
)
def test_decayed_sums_are_those_of_the_recurrence(x, decay):
    total, wanted = np.zeros(2), []
    for column in x.T.astype(np.float64):
        total = column + decay * total
        wanted.append(total)
    found = np.array(decayed_sums(mx.array(x), decay))
    np.testing.assert_allclose(found, np.array(wanted).T, atol=70 * ROUNDINGS)
