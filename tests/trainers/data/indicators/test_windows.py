"""Files of prices become windows with a class; what no market has is refused, what is missing decided on."""

from __future__ import annotations

import numpy as np
import pytest

import weighbridge
from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.configuration.data import BarsData
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.indicators.chunks import READY, features_of
from weighbridge.trainers.data.indicators.reading import fill, read_split


@pytest.fixture
def read(tmp_path, prices):
    """Return a function that reads the market of the fixtures, with some columns changed."""

    def reading(changed=None, **settings):
        path = tmp_path / "market.npz"
        np.savez(path, **(prices | (changed or {})))
        section = BarsData(kind="bars", train=path, validation=path, window=8, **settings)
        return read_split(section, path, Context())

    return reading


def with_gaps(prices, *places):
    changed = {name: x.copy() for name, x in prices.items()}
    for symbol, bar in places:
        changed["close"][symbol, bar] = np.nan
    return changed


@pytest.mark.parametrize(("interval", "horizon"), [(1, 5), (3, 1), (50, 20)])
def test_every_window_ends_where_its_class_begins(read, prices, interval, horizon):
    windows = read(interval=interval, horizon=horizon, threshold=0.01)
    features, close = features_of(prices, 7), prices["close"].astype(np.float64)
    ends = range(READY + 7, close.shape[1] - horizon, interval)
    wanted = [(symbol, end) for symbol in range(len(close)) for end in ends]
    assert len(windows) == len(wanted)
    batch = windows.batch(range(len(windows)))
    for row, (symbol, end) in enumerate(wanted):
        np.testing.assert_array_equal(
            batch.inputs["series"][row], features[symbol, end - 7 : end + 1]
        )
        change = close[symbol, end + horizon] / close[symbol, end] - 1
        assert batch.inputs["labels"][row] == 1 + (change > 0.01) - (change < -0.01)
    assert (batch.inputs["series"].dtype, batch.inputs["labels"].dtype) == (np.float32, np.int64)
    assert windows.report["examples"] == len(wanted)


def test_without_a_threshold_there_are_two_classes(read):
    assert set(read().batch(range(len(read()))).inputs["labels"].tolist()) == {0, 1}


@pytest.mark.parametrize(("threshold", "classes"), [(0, 3), (0.01, 2)])
def test_a_model_of_more_or_fewer_classes_than_the_threshold_makes_is_refused(
    tmp_path, prices, threshold, classes
):
    np.savez(tmp_path / "market.npz", **prices)
    settings = {f"data.{part}": tmp_path / "market.npz" for part in ("train", "validation")}
    settings |= {"data.threshold": threshold, "model_options.classes": classes, "steps": 2}
    with pytest.raises(MismatchError, match=f"makes {5 - classes} classes") as refused:
        weighbridge.train(tmp_path / "run", "indicators", settings=settings)
    assert f"model_options.classes={5 - classes}" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_any_rows_in_any_order_make_a_batch(read):
    windows = read()
    whole = windows.batch(range(len(windows))).inputs
    some = windows.batch([5, 0, 5]).inputs
    for name, array in some.items():
        np.testing.assert_array_equal(array, whole[name][[5, 0, 5]])


def test_settings_of_memory_change_nothing(read):
    assert read(symbols_per_chunk=2, memory_limit_mb=1.0).digest == read().digest


def test_another_window_or_price_is_other_data(read, prices):
    digests = {read().digest, read(interval=2).digest, read(horizon=6).digest}
    assert len(digests | {read(with_gaps(prices, (0, 70)), missing="replace").digest}) == 4


def test_missing_bars_are_refused_with_their_number_and_what_to_do(read, prices):
    with pytest.raises(MismatchError, match=r"2 of 1050 bars are missing .*data.missing=replace"):
        read(with_gaps(prices, (0, 70), (1, 3)))


def test_missing_bars_become_bars_without_trade(read, prices):
    columns = {
        name: x.astype(np.float64)
        for name, x in with_gaps(prices, (0, 0), (0, 70), (0, 71)).items()
    }
    filled = fill(columns, np.isnan(columns["close"]))
    for name in ("open", "high", "low", "close"):
        assert filled[name][0, [0, 70, 71]].tolist() == columns["close"][0, [1, 69, 69]].tolist()
        np.testing.assert_array_equal(filled[name][1:], prices[name][1:])
    assert filled["volume"][0, [0, 70, 71]].tolist() == [0, 0, 0]
    windows = read(with_gaps(prices, (0, 0), (0, 70)), missing="replace")
    assert windows.report["missing_bars"] == 2
    assert len(windows) == len(read())
    assert np.isfinite(windows.batch(range(len(windows))).inputs["series"]).all()


def test_windows_that_hold_a_missing_bar_are_dropped_and_counted(read, prices):
    windows = read(with_gaps(prices, (2, 70)), missing="drop", horizon=5)
    # A window of 8 bars and 5 after it hold bar 70 where it ends between bars 65 and 77.
    assert windows.report["left_out"] == 13 == len(read(horizon=5)) - len(windows)


BAD = {
    "open is missing": lambda p: {"open": None},
    r"volume: 1 of 1050 numbers are below 0": lambda p: {"volume": changed(p["volume"], -1)},
    r"low: 1 of 1050 numbers are 0 or below": lambda p: {"low": changed(p["low"], 0)},
    r"close: 1 of 1050 numbers are infinite": lambda p: {"close": changed(p["close"], np.inf)},
    r"high is below low in 1 bars": lambda p: {"high": changed(p["high"], 1e-9)},
    r"close: float32\[150\] is no array": lambda p: {"close": p["close"][0]},
    r"different shapes: .*close": lambda p: {"close": p["close"][:, :100]},
    r"1 symbols have no close at all": lambda p: {
        "close": changed(p["close"], np.nan, slice(None))
    },
}


def changed(array, value, bars=9):
    array = array.copy()
    array[1, bars] = value
    return array


@pytest.mark.parametrize(("message", "change"), BAD.items(), ids=BAD)
def test_what_no_market_has_is_refused(tmp_path, prices, message, change):
    path = tmp_path / "market.npz"
    np.savez(path, **{n: x for n, x in (prices | change(prices)).items() if x is not None})
    section = BarsData(kind="bars", train=path, validation=path, missing="replace")
    with pytest.raises(MismatchError, match=message):
        read_split(section, path, Context())


def test_a_market_too_short_for_a_window_is_told_what_it_lacks(read):
    with pytest.raises(BadInputError, match=r"has 150 bars, and a window needs 241"):
        read(horizon=200)
