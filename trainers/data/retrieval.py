"""How well embeddings find what belongs to them, and whether a change is more than chance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...converters.values import Array


def ranks(queries: Array, documents: Array) -> Array:
    """Return the rank of document i for query i among all documents, from 1; ties and NaN count against.

    Args:
        queries: unit vectors, shape ``(n, width)``.
        documents: unit vectors, same shape.

    >>> ranks(np.eye(3), np.eye(3)[[0, 2, 1]]).tolist()
    [1, 3, 3]
    """
    return ranks_of(queries.astype(np.float64) @ documents.astype(np.float64).T)


def ranks_of(scores: Array) -> Array:
    """Return the same for SCORES of shape ``(queries, documents)``, in which document i is query i's."""
    return np.asarray((~(scores < np.diagonal(scores)[:, None])).sum(axis=1))


def retrieval_metrics(rank: Array) -> dict[str, float]:
    """Return P@1, MRR (mean reciprocal rank) and R@10 (the answer is among the first ten).

    >>> retrieval_metrics(np.array([1, 2, 20]))
    {'p@1': 0.3333333333333333, 'mrr': 0.5166666666666667, 'r@10': 0.6666666666666666}
    """
    return {
        "p@1": float(np.mean(rank == 1)),
        "mrr": float(np.mean(1 / rank)),
        "r@10": float(np.mean(rank <= 10)),
    }


class Interval(NamedTuple):
    """A difference of means and its 95 % confidence interval."""

    difference: float
    low: float
    high: float


def paired_bootstrap(
    before: Array,
    after: Array,
    weights: Array | None = None,
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the mean of AFTER - BEFORE with a percentile interval over resampled examples.

    Efron and Tibshirani 1993, section 13.3. Both are per example, in the same order, for instance
    reciprocal ranks; an interval that does not contain 0 is a change beyond chance at 5 %. With
    WEIGHTS the mean is the weighted one, in every sample.

    >>> paired_bootstrap(np.zeros(50), np.ones(50))
    Interval(difference=1.0, low=1.0, high=1.0)
    """
    change = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    size = len(change)
    weights = np.ones(size) if weights is None else np.asarray(weights, np.float64)
    counts = np.random.default_rng(seed).multinomial(size, [1 / size] * size, size=resamples)
    means = counts @ (weights * change) / (counts @ weights)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(np.average(change, weights=weights)), float(low), float(high))
