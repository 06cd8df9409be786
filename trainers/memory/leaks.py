"""Whether memory leaks: a robust trend of what stays in use, with its uncertainty.

1. The first third of the readings is left out: caches fill, kernels are compiled, optimizers make state.
2. The rest is cut into at most 24 blocks of equal length, and of each the smallest reading is kept: what a
   leak holds is in every reading, what an update needs in passing is not in the smallest one.
3. The slope is that of Theil (1950) and Sen (1968): the median of the slopes between all pairs of blocks,
   with Sen's interval at 99 % from the distribution of Kendall's tau (``scipy.stats.theilslopes``). Up to
   29 % of the blocks may be outliers.
4. It is a leak where the lower end of the interval is growth that counts (more than 0.5 % of the level over
   the blocks), in all of them and in each half alone: memory that rises once and then stays is no leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from ...converters.values import Array

WARM_UP: Final = 1 / 3  # part of the readings that is left out
BLOCKS: Final = 24
FEWEST: Final = 36  # readings with which a verdict is given
CONFIDENCE: Final = 0.99
NEGLIGIBLE: Final = 0.005  # growth over the blocks, as a part of their level

Verdict = Literal["leak", "steady", "too short"]


class Trend(NamedTuple):
    """How memory in use changes.

    Attributes:
        verdict: ``leak``, ``steady``, or ``too short`` for either.
        slope: bytes per unit of x (an update, or a second).
        low: lower end of its 99 % interval.
        high: upper end of it.
        growth: bytes gained over the readings looked at, by SLOPE.
        level: median of the readings looked at, in bytes.
    """

    verdict: Verdict
    slope: float = 0.0
    low: float = 0.0
    high: float = 0.0
    growth: float = 0.0
    level: float = 0.0


def leak_trend(places: Sequence[float], sizes: Sequence[float]) -> Trend:
    """Judge whether SIZES grow for good.

    Args:
        places: where each reading was taken, rising: numbers of updates, or seconds.
        sizes: the readings in bytes.

    Returns:
        The trend with its verdict; ``too short`` below 36 readings.

    Example:
        >>> leak_trend(range(200), [1e8 + 1e5 * step for step in range(200)]).verdict
        'leak'
        >>> leak_trend(range(200), [1e8] * 200).verdict
        'steady'
    """
    if len(sizes) < FEWEST:
        return Trend("too short")
    first = int(len(sizes) * WARM_UP)
    x, y = np.asarray(places, np.float64)[first:], np.asarray(sizes, np.float64)[first:]
    level, blocks = float(np.median(y)), _floors(x, y)
    slope, low, high = _slope(*blocks)
    middle, length = len(blocks[0]) // 2, float(np.ptp(blocks[0]))
    halves = [
        _slope(*(part[half] for part in blocks)) for half in (slice(middle), slice(middle, None))
    ]
    surely = min(low, *(half[1] for half in halves)) * length
    verdict: Verdict = "leak" if surely > NEGLIGIBLE * level else "steady"
    return Trend(verdict, slope, low, high, slope * length, level)


def _floors(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the smallest reading of every block, and where it was taken."""
    parts = np.array_split(np.arange(len(y)), min(BLOCKS, len(y)))
    least = [part[np.argmin(y[part])] for part in parts]
    return x[least], y[least]


def _slope(x: Array, y: Array) -> tuple[float, float, float]:
    from scipy.stats import theilslopes

    found = theilslopes(y, x, alpha=CONFIDENCE)
    return float(found.slope), float(found.low_slope), float(found.high_slope)
