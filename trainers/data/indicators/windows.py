"""Windows of features, each with the class of what the price does next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from ....converters.values import Array
from ....errors import BadInputError
from ..batches import Batch
from .chunks import READY

if TYPE_CHECKING:
    from ...configuration.data import BarsData


def moves(close: Array, horizon: int, threshold: float) -> Array:
    """Return the class of every bar: how the close HORIZON bars later compares with its own.

    With a THRESHOLD there are three: 0 where it has fallen by more than this part of it, 2 where it has risen by
    more, 1 otherwise. Without, there are two: 1 where it has risen.

    Args:
        close: shape ``(symbols, bars)``.
        horizon: bars ahead.
        threshold: part of the close.

    Returns:
        int64 of shape ``(symbols, max(0, bars - horizon))``.

    >>> moves(np.array([[100.0, 103.0, 102.0, 90.0]]), 1, 0.02).tolist()
    [[2, 1, 0]]
    """
    change = close[:, horizon:] / close[:, :-horizon] - 1
    if not threshold:
        return np.asarray(change > 0, np.int64)
    return np.asarray(1 + (change > threshold) - (change < -threshold).astype(np.int64))


class Windows:
    """Examples of the last bars before a bar; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Windows overlap and are cut out of the features when a batch is made, so none is held twice.

    Args:
        features: shape ``(symbols, bars, features)``.
        labels: the class of every bar that has one, shape ``(symbols, bars - horizon)``.
        left_out: bars that no window and no horizon may hold, shape ``(symbols, bars)``.
        section: window, interval and horizon.
        ends: the last bar of every window.
    """

    def __init__(
        self, features: Array, labels: Array, left_out: Array, section: BarsData, ends: Array
    ) -> None:
        self._features, self._window = features, section.window
        self._threshold = section.threshold
        whole = _whole(left_out, ends - section.window + 1, ends + section.horizon)
        self._symbols, places = np.nonzero(whole)
        self._ends = ends[places]
        self._labels = labels[self._symbols, self._ends]
        counts = np.bincount(self._labels).tolist()
        self.report = {"examples": len(places), "symbols": len(features)}
        self.report |= {f"class_{number}": count for number, count in enumerate(counts)}
        self.report |= {"left_out": whole.size - len(places)}
        self.digest = self._hash()

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._labels)

    def misfits(self, classes: int) -> list[str]:
        """Say that a model of CLASSES is none for these windows, where it has more or fewer than they."""
        own, more = (
            (3, "") if self._threshold else (2, ", or a data.threshold above 0, which makes three")
        )
        if classes == own:
            return []
        head = (
            f"data.threshold={self._threshold:g} makes {own} classes, and the model has {classes}"
        )
        return [f"{head}; give a model of {own} (--set model_options.classes={own}){more}"]

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return windows, float32 of shape ``(rows, window, features)``, and their labels, int64."""
        chosen = np.asarray(rows)
        bars = self._ends[chosen, None] + np.arange(1 - self._window, 1)
        series = self._features[self._symbols[chosen, None], bars]
        return Batch({"series": series, "labels": self._labels[chosen]}, len(rows), series.size)

    def length(self, row: int) -> int:  # noqa: ARG002 - all windows are alike
        """Return 0: every window is as long as the others."""
        return 0

    def keys(self, row: int) -> tuple[Hashable, ...]:  # noqa: ARG002 - all windows are alike
        """Return nothing: any two examples may meet."""
        return ()

    def _hash(self) -> str:
        digest = xxhash.xxh3_128(f"{self._window}{self._features.shape}".encode())
        for array in (self._features, self._symbols, self._ends, self._labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def ends_of(bars: int, section: BarsData, name: str) -> Array:
    """Return the last bar of every window of BARS; NAME is what to call the data in errors.

    Raises:
        BadInputError: there is no whole window.
    """
    ends = np.arange(READY + section.window - 1, bars - section.horizon, section.interval)
    if len(ends):
        return ends
    least = READY + section.window + section.horizon
    raise BadInputError(
        f"{name} has {bars} bars, and a window needs {least}: indicators begin after {READY}, then come"
        f" {section.window} of data.window and {section.horizon} of data.horizon"
    )


def _whole(left_out: Array, firsts: Array, lasts: Array) -> Array:
    """Return for every symbol and window whether no bar from the first to the last is LEFT_OUT."""
    before = np.pad(np.cumsum(left_out, axis=1), [(0, 0), (1, 0)])
    return np.asarray(before[:, lasts + 1] == before[:, firsts])
