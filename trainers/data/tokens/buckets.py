"""Lengths that texts are padded to: few, so that a step is compiled for few shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ....converters.values import Array
from ....errors import MismatchError
from ..context import Context

MULTIPLE: Final = 8  # of which padded lengths are, where they are chosen here
COUNT: Final = 8  # lengths that are chosen at most
Ids = Sequence[int] | Array


def chosen(lengths: Ids, limit: int, count: int = COUNT) -> tuple[int, ...]:
    """Return padded lengths for texts of LENGTHS: their quantiles, rounded up, none above LIMIT.

    >>> chosen([3, 5, 9, 30, 31, 100], limit=64)
    (8, 16, 32, 64)
    """
    quantiles = np.quantile(lengths, np.arange(1, count + 1) / count, method="higher")
    return tuple(sorted({min(rounded(int(length)), limit) for length in quantiles}))


def rounded(length: int) -> int:
    """Return LENGTH, rounded up."""
    return -(-length // MULTIPLE) * MULTIPLE


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


def suited(
    asked: Sequence[int] | None, found: Sequence[int], context: Context, count: int = COUNT
) -> tuple[int, ...]:
    """Return the padded lengths ASKED for, or COUNT that suit texts of lengths FOUND and the model."""
    if asked:
        return tuple(sorted(asked))
    longest = rounded(max(found, default=1))
    return chosen(found or [1], min(longest, context.positions or longest), count)


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
