"""What each row of an axis that is interpolated takes of the old ones, as matrices in float64."""

from __future__ import annotations

import numpy as np

from ...values import Array


def between(new: float, old: float, step: float, aligned: float) -> Array:
    """Return how much each of NEW rows takes of each of OLD ones, in proportion to how near two lie.

    Rows lie STEP apart: their centres, or their first ones on each other if ALIGNED. Those beyond the ends are
    those at the ends.

    >>> between(4, 2, 0.5, 0).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    places = np.clip(_places(new, step, aligned), 0, int(old) - 1)
    return np.asarray(np.maximum(1 - np.abs(places[:, None] - np.arange(int(old))), 0))


def cubic(new: float, old: float, step: float, aligned: float) -> Array:
    """Return how much each of NEW rows takes of each of OLD ones, by cubic convolution with a = -3/4.

    Keys 1981, Cubic Convolution Interpolation for Digital Image Processing, equation 4. Of the rest see ``between``.

    >>> cubic(4, 2, 0.5, 0).tolist()[:2]
    [[1.10546875, -0.10546875], [0.7734375, 0.2265625]]
    """
    places, rows = _places(new, step, aligned), np.arange(int(new))
    found = np.zeros((int(new), int(old)))
    for offset in (-1, 0, 1, 2):
        column = np.floor(places) + offset
        taken = np.clip(column, 0, int(old) - 1).astype(int)
        np.add.at(found, (rows, taken), _keys(places - column, -0.75))
    return found


def smooth(new: float, old: float, step: float, reach: float) -> Array:
    """Return how much each of NEW rows takes of each of OLD ones, STEP apart, without aliasing.

    What is taken within a REACH of 1, linear, or 2, cubic with a = -1/2, is taken within as many rows of the coarser
    grid, and adds up to 1 (``antialias`` of torch, after Pillow).

    >>> smooth(1, 2, 2, 1).tolist()
    [[0.5, 0.5]]
    """
    wide, old_rows = max(step, 1.0), np.arange(int(old))
    middles = step * (np.arange(int(new)) + 0.5)
    first = np.maximum((middles - reach * wide + 0.5).astype(int), 0)
    ends = np.minimum((middles + reach * wide + 0.5).astype(int), int(old))
    apart = (old_rows - middles[:, None] + 0.5) / wide
    taken = np.maximum(1 - np.abs(apart), 0) if reach == 1 else _keys(apart, -0.5)
    taken = np.where((first[:, None] <= old_rows) & (old_rows < ends[:, None]), taken, 0)
    return np.asarray(taken / taken.sum(1, keepdims=True))


def spread(end: float, rows: float, columns: float) -> Array:
    """Return numbers evenly from minus END to END, shape (ROWS, COLUMNS, 1), such as where the pixels of a grid lie.

    >>> spread(0.5, 3, 1).ravel().tolist()
    [-0.5, 0.0, 0.5]
    """
    return np.linspace(-end, end, int(rows * columns)).reshape(int(rows), int(columns), 1)


def _places(new: float, step: float, aligned: float) -> Array:
    """Return where NEW rows lie among the old ones."""
    half = 0.0 if aligned else 0.5
    return (np.arange(int(new)) + half) * step - half


def _keys(distance: Array, a: float) -> Array:
    """Return Keys' kernel, A being its free coefficient."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d**2 + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
