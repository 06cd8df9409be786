"""A market made up, with something in it to be learned: prices drift for a while, and volume tells which way.

Each symbol is made on its own, from the seed, the split and its number:

1. A drift ``d`` that nobody sees: ``d[t] = 0.97 d[t-1] + 0.24 e``, of deviation 1, alike for some 30 bars.
2. Volatility in clusters: ``s = 0.01 exp(0.3 u)`` with ``u[t] = 0.98 u[t-1] + 0.20 e``, about 1 % of the price a bar.
3. The close moves by ``s (0.5 d + e)`` in logarithms: a fifth of its variance is drift, the rest is chance.
4. The open is the close before; high and low reach beyond both by ``s |e| / 2``.
5. Volume is larger where the price moves and where it moves with the drift:
   ``log v = base + 0.5 |move| / s + 0.4 d sign(move) + 0.3 e``.
6. Some bars have no trade: prices stand still and the volume is 0, as at a holiday.

Every ``e`` is a standard normal number of its own. Real markets are not so kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from ....converters.values import Array

SYMBOLS: Final = 48
BARS: Final[dict[str, int]] = {"train": 1500, "validation": 400, "test": 400}
PERSISTENCE: Final = 0.97  # of the drift from bar to bar
DRIFT: Final = 0.5  # of a move, as a part of its volatility
HOLIDAYS: Final = 0.01  # part of the bars without trade


def write_market(folder: Path) -> None:
    """Write ``train.npz``, ``validation.npz`` and ``test.npz`` to FOLDER, in float32."""
    for split, bars in BARS.items():
        seeds = np.random.SeedSequence([*BARS].index(split)).spawn(SYMBOLS)
        symbols = [symbol(np.random.default_rng(seed), bars) for seed in seeds]
        columns = {name: np.stack([it[name] for it in symbols]) for name in symbols[0]}
        np.savez(folder / f"{split}.npz", **columns)  # type: ignore[arg-type]  # numpy types its one option here too


def symbol(random: np.random.Generator, bars: int) -> dict[str, Array]:
    """Return open, high, low, close and volume of one symbol, float32 of shape ``(bars,)``."""
    drift = _returning(random, bars, PERSISTENCE)
    volatility = 0.01 * np.exp(0.3 * _returning(random, bars, 0.98))
    trade = random.random(bars) >= HOLIDAYS
    moves = trade * volatility * (DRIFT * drift + random.normal(size=bars))
    close = 100 * np.exp(np.cumsum(moves))
    opened = np.concatenate([[100.0], close[:-1]])
    reach = 1 + trade * volatility * np.abs(random.normal(size=(2, bars))) / 2
    loud = 0.5 * np.abs(moves) / volatility + 0.4 * drift * np.sign(moves)
    volume = trade * np.exp(10 + loud + 0.3 * random.normal(size=bars))
    columns = {
        "open": opened,
        "high": np.maximum(opened, close) * reach[0],
        "low": np.minimum(opened, close) / reach[1],
        "close": close,
        "volume": volume,
    }
    return {name: column.astype(np.float32) for name, column in columns.items()}


def _returning(random: np.random.Generator, bars: int, persistence: float) -> Array:
    """Return an autoregressive series of order one, of mean 0 and deviation 1."""
    values = random.normal(size=bars)
    for bar in range(1, bars):
        values[bar] = persistence * values[bar - 1] + np.sqrt(1 - persistence**2) * values[bar]
    return values
