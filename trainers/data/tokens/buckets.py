"""Lengths that texts are padded to: few, so that a step is compiled for few shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ....converters.values import Array
from ....errors import MismatchError
from ..context import Context

SPARE: Final = 1.03  # padded over real tokens, where lengths are chosen here; batches add to it
MOST: Final = 32  # lengths that are chosen
CANDIDATES: Final = 512  # lengths that are tried
Ids = Sequence[int] | Array


def chosen(lengths: Ids, limit: int) -> tuple[int, ...]:
    """Return padded lengths for texts of LENGTHS, none above LIMIT: as few as keep padding within ``SPARE``.

    Of so many lengths those with the least padding, by dynamic programming over where one ends.

    >>> chosen([3, 5, 9, 30, 31, 100], limit=64)
    (5, 9, 31, 64)
    """
    cut = np.minimum(np.asarray(lengths), limit)
    step = -(-int(cut.max()) // CANDIDATES)
    ends, counts = np.unique(-(-cut // step) * step, return_counts=True)
    ends = np.minimum(ends, limit)
    before = np.concatenate([[0], np.cumsum(counts)])
    best, ways = before[1:] * ends.astype(float), [np.zeros(len(ends), int)]
    while best[-1] > SPARE * cut.sum() and len(ways) < min(MOST, len(ends)):
        cost = best[:, None] + (before[None, 1:] - before[1:, None]) * ends
        cost[np.tril_indices(len(ends))] = np.inf  # one ends before the next
        ways.append(cost.argmin(0))
        best = cost.min(0)
    found = [len(ends) - 1]
    for way in ways[:0:-1]:
        found.append(int(way[found[-1]]))
    return tuple(sorted({int(ends[at]) for at in found}))


def fitting(buckets: Sequence[int], longest: int) -> int:
    """Return the smallest of the ascending BUCKETS that LONGEST tokens fit in."""
    return next(length for length in buckets if length >= longest)


def padded(texts: Sequence[Ids], buckets: Sequence[int], fill: int = 0) -> Array:
    """Return TEXTS as int64, filled up with FILL, shape ``(texts, length)``.

    >>> padded([[5, 6], [7]], [3]).tolist()
    [[5, 6, 0], [7, 0, 0]]
    """
    length = fitting(buckets, max(len(text) for text in texts))
    array = np.full((len(texts), length), fill, np.int64)
    for row, text in enumerate(texts):
        array[row, : len(text)] = text
    return array


def real(texts: Sequence[Ids], width: int) -> Array:
    """Return 1 for what is a token of TEXTS and 0 for padding, int64, shape ``(texts, width)``."""
    lengths = np.array([len(text) for text in texts])
    return (np.arange(width) < lengths[:, None]).astype(np.int64)


def suited(asked: Sequence[int] | None, found: Sequence[int], context: Context) -> tuple[int, ...]:
    """Return the padded lengths ASKED for, or what suits texts of the lengths FOUND and the model."""
    if asked:
        return tuple(sorted(asked))
    longest = max(found, default=1)
    return chosen(found or [1], min(longest, context.positions or longest))


def require_fit(
    buckets: Mapping[str, Sequence[int]], largest: int, path: Path, context: Context
) -> None:
    """Refuse texts that the model has no row for.

    Args:
        buckets: padded lengths by their setting.
        largest: of the token ids.
        path: where they are from.
        context: what the model has.

    Raises:
        MismatchError: it has fewer positions, or fewer ids.
    """
    problems = [
        f"{name}: {length} tokens, and the model has {context.positions} positions"
        for name, length in ((name, it) for name, them in buckets.items() for it in them)
        if context.positions and length > context.positions
    ]
    if context.vocabulary and largest >= context.vocabulary:
        known = f"and the model has 0 to {context.vocabulary - 1}"
        problems.append(f"{path}: token id {largest}, {known}")
    if problems:
        raise MismatchError("the model does not fit the texts of the run", problems)
