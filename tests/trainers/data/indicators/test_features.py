"""Features: finite on any market, without a look ahead, the same in chunks and below a limit of memory."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.errors import BadInputError
from weighbridge.trainers.data.indicators.chunks import (
    MEGABYTE,
    READY,
    features_of,
    symbols_at_once,
)
from weighbridge.trainers.data.indicators.features import BOUND, FEATURES, features
from weighbridge.trainers.data.indicators.formulas import Bars


def test_features_are_finite_once_there_are_bars_enough(prices):
    found = features_of(prices, len(prices["close"]))
    assert found.shape == (*prices["close"].shape, len(FEATURES))
    assert np.isfinite(found[:, READY:]).all()
    assert np.isnan(found[:, READY - 1]).any(axis=-1).all()
    assert np.abs(found[:, READY:]).max() <= BOUND


@pytest.mark.parametrize("at_once", [1, 2, 3, 6])
def test_features_in_chunks_are_those_computed_at_once_to_the_bit(prices, at_once):
    assert features_of(prices, at_once).tobytes() == features_of(prices, 7).tobytes()


def test_features_do_not_depend_on_the_units_of_price_and_volume(prices):
    other = {name: x * (8 if name == "volume" else 4) for name, x in prices.items()}
    np.testing.assert_array_equal(features_of(other, 7), features_of(prices, 7))


def test_what_comes_later_changes_nothing(prices):
    bars = [mx.array(prices[name]) for name in Bars._fields]
    early = features(Bars(*(x[:, :100] for x in bars)))
    np.testing.assert_array_equal(np.array(early), np.array(features(Bars(*bars)))[:, :100])


def test_computing_stays_below_the_limit_of_memory():
    g = np.random.default_rng(0)
    close = np.exp(np.cumsum(g.normal(size=(64, 2000)) * 0.01, axis=1)).astype(np.float32)
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), close)
    limit = 8.0
    at_once = symbols_at_once(2000, limit)
    assert 1 < at_once < 64
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    features_of(prices, at_once)
    assert mx.get_peak_memory() - before <= limit * MEGABYTE


@given(bars=st.integers(1, 10**6), limit=st.floats(0.1, 1e4), most=st.none() | st.integers(1, 100))
def test_symbols_computed_together_fit_or_are_refused(bars, limit, most):
    try:
        assert 1 <= symbols_at_once(bars, limit, most) <= (most or 10**9)
    except BadInputError as error:
        assert "--set data.memory_limit_mb=" in str(error)  # noqa: PT017 - either is right


def test_one_symbol_that_does_not_fit_is_told_what_would():
    with pytest.raises(
        BadInputError, match=r"20000 bars need 3\.8 MB: --set data.memory_limit_mb=4"
    ):
        symbols_at_once(20_000, 1)
    assert symbols_at_once(20_000, 4) == 1
