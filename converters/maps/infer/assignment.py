"""The best one-to-one assignment: the Hungarian method, so that scipy is not needed."""

from __future__ import annotations

import numpy as np

from ...values import Array


def assign(score: Array) -> list[int]:
    """Return for every row of SCORE the column given to it, all columns different, the sum greatest.

    Shortest augmenting paths with potentials (Jonker and Volgenant 1987), O(n^3).

    Args:
        score: (n, n), finite.

    >>> assign(np.array([[9.0, 8.0], [8.0, 1.0]]))
    [1, 0]
    """
    size = len(score)
    cost = np.zeros((size + 1, size + 1))
    cost[1:, 1:] = -np.asarray(score, float)
    potentials = np.zeros(size + 1), np.zeros(size + 1)
    owner = np.zeros(size + 1, int)  # row by column; column 0 holds the row that is being placed
    for row in range(1, size + 1):
        owner[0] = row
        column, previous = _path(cost, potentials, owner)
        while column:
            owner[column] = owner[previous[column]]
            column = int(previous[column])
    placed = {int(owner[column]): column - 1 for column in range(1, size + 1)}
    return [placed[row] for row in range(1, size + 1)]


def _path(cost: Array, potentials: tuple[Array, Array], owner: Array) -> tuple[int, Array]:
    """Return the free column that is nearest to the row in column 0, and the way back from it."""
    rows, columns = potentials
    nearest = np.full(len(cost), np.inf)
    previous = np.zeros(len(cost), int)
    done = np.zeros(len(cost), bool)
    column = 0
    while owner[column]:
        done[column] = True
        row = int(owner[column])
        reduced = cost[row] - rows[row] - columns
        better = ~done & (reduced < nearest)
        nearest[better], previous[better] = reduced[better], column
        following = int(np.where(done, np.inf, nearest).argmin())
        step = nearest[following]
        rows[owner[done]] += step
        columns[done] -= step
        nearest[~done] -= step
        column = following
    return column, previous
