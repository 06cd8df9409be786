"""The market that is made up: the same every time, and with something to learn in it."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.trainers.data.indicators import generated
from weighbridge.trainers.data.indicators.chunks import COLUMNS
from weighbridge.trainers.data.indicators.reading import read_columns


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    folder = tmp_path_factory.mktemp("market")
    generated.write_market(folder)
    return {split: read_columns(folder / f"{split}.npz") for split in generated.BARS}


def test_bars_are_those_of_a_market(market):
    for split, columns in market.items():
        assert columns["close"].shape == (generated.SYMBOLS, generated.BARS[split])
        assert (columns["high"] >= np.maximum(columns["open"], columns["close"])).all()
        assert (columns["low"] <= np.minimum(columns["open"], columns["close"])).all()
        assert 0 < (columns["volume"] == 0).mean() < 0.02


def test_it_is_the_same_every_time_and_no_symbol_is_another(market, tmp_path):
    generated.write_market(tmp_path)
    again = read_columns(tmp_path / "train.npz")
    assert all(np.array_equal(again[name], market["train"][name]) for name in COLUMNS)
    closes = np.concatenate([columns["close"][:, 50] for columns in market.values()])
    assert len(set(closes.tolist())) == len(closes)


def test_what_prices_did_tells_of_what_they_do(market):
    moves = np.diff(np.log(market["train"]["close"]), axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(moves, 15, axis=1)
    past, future = windows[..., :10].sum(-1).ravel(), windows[..., 10:].sum(-1).ravel()
    assert 0.3 < np.corrcoef(past, future)[0, 1] < 0.6
