"""Features of many symbols, some of them at a time, under a limit of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ....converters.values import Array
from ....errors import BadInputError

COLUMNS: Final = ("open", "high", "low", "close", "volume")
ARRAYS: Final = 48  # float32 arrays of a symbol's bars that are there at the same time, at most
READY: Final = 33  # bars before the first one that has all features
MEGABYTE: Final = 1_000_000


def symbols_at_once(bars: int, limit: float, most: int | None = None) -> int:
    """Return how many symbols of BARS bars are computed together.

    Args:
        bars: of every symbol.
        limit: megabytes of device memory.
        most: symbols, whatever memory there is.

    Raises:
        BadInputError: not even one symbol fits.

    Example:
        >>> symbols_at_once(2000, 100), symbols_at_once(2000, 100, 16)
        (260, 16)
    """
    each = ARRAYS * 4 * bars / MEGABYTE
    fitting = int(limit / each)
    if not fitting:
        raise BadInputError(
            f"the indicators of one symbol with {bars} bars need {each:.1f} MB: --set"
            f" data.memory_limit_mb={int(each) + 1}, or give fewer bars"
        )
    return min(fitting, most or fitting)


def features_of(columns: Mapping[str, Array], at_once: int) -> Array:
    """Return the features of every bar, computed on MLX's device.

    Args:
        columns: open, high, low, close and volume, each of shape ``(symbols, bars)``, without gaps.
        at_once: symbols that are computed together; the result is the same for any number.

    Returns:
        float32 of shape ``(symbols, bars, features)``; see :func:`.features.features`.
    """
    import mlx.core as mx

    from .features import FEATURES, features
    from .formulas import Bars

    shape = columns["close"].shape
    result: Array = np.empty((*shape, len(FEATURES)), np.float32)
    for first in range(0, shape[0], at_once):
        part = slice(first, first + at_once)
        scaled = (_scaled(name, columns, part) for name in COLUMNS)
        result[part] = np.array(features(Bars(*map(mx.array, scaled))))
    return result


def _scaled(name: str, columns: Mapping[str, Array], part: slice) -> Array:
    """Return a column in float32 as a part of the symbol's first close, or of its mean volume.

    No feature has a unit, so this changes none, and prices of any size are in the middle of float32's range.
    """
    unit = columns["close"][part, :1]
    if name == "volume":
        unit = columns[name][part].mean(axis=1, keepdims=True, dtype=np.float64)
        unit = np.where(unit == 0, 1, unit)
    scaled: Array = (columns[name][part] / unit).astype(np.float32)
    return scaled
