"""Markets to compute indicators of, one of every kind that breaks careless formulas."""

from __future__ import annotations

import numpy as np
import pytest

BARS = 150


def walk(seed: int, bars: int = BARS, price: float = 100.0, swing: float = 0.02) -> dict:
    """Return the bars of one symbol: a random walk whose range holds open and close."""
    g = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(g.normal(size=bars)) * swing)
    opened = np.concatenate([close[:1], close[:-1]])
    high = np.maximum(opened, close) * (1 + swing * g.random(bars))
    low = np.minimum(opened, close) * (1 - swing * g.random(bars) / 2)
    volume = g.lognormal(10, 1, bars)
    return {"open": opened, "high": high, "low": low, "close": close, "volume": volume}


def still(bars: int = BARS) -> dict:
    """Return a symbol whose price never moves."""
    return {name: np.full(bars, 50.0) for name in ("open", "high", "low", "close", "volume")}


def halted() -> dict:
    """Return a symbol that moves, then stands without trade for 40 bars, then moves again."""
    prices = walk(4)
    for name in ("open", "high", "low", "close"):
        prices[name][60:100] = prices["close"][59]
    prices["volume"][60:100] = 0
    return prices


SYMBOLS = [
    walk(1),
    walk(2, price=6e4),
    walk(3, price=1e-4, swing=0.2),
    still(),
    halted(),
    walk(5) | {"volume": np.zeros(BARS)},
    walk(6) | {"volume": walk(6)["volume"] * 1e9},
]


@pytest.fixture(scope="session")
def prices() -> dict:
    """Return columns of shape ``(symbols, bars)`` in float32, as a file would hold them."""
    return {n: np.stack([s[n] for s in SYMBOLS]).astype(np.float32) for n in SYMBOLS[0]}
