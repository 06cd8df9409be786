"""The figures of a model on a split; nothing here draws a random number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, cast

import numpy as np

from ..converters.values import Array
from .batches import Dataset
from .pairs import Pairs
from .retrieval import contrastive_loss, ranks, retrieval_metrics
from .steps.base import Step

EMBED_ROWS: Final = 32  # texts embedded at a time; the last ones are filled up, so shapes stay few


class Scores(NamedTuple):
    """The figures of a split, and one number per example to compare two models by."""

    metrics: dict[str, float]
    per_example: Array


def measure_retrieval(step: Step, dataset: Dataset, size: int, temperature: float) -> Scores:
    """Return loss, P@1, MRR and R@10 of finding every pair's document among all of the split.

    The loss is that of training, over consecutive batches of SIZE pairs.
    """
    pairs = cast(Pairs, dataset)
    queries, documents = (embed_all(step, pairs, name) for name in ("query", "document"))
    rank = ranks(queries, documents)
    losses = [
        contrastive_loss(queries[rows], documents[rows], temperature)
        for rows in _slices(len(pairs), size)
    ]
    return Scores({"loss": float(np.mean(losses))} | retrieval_metrics(rank), 1 / rank)


def measure_loss(step: Step, dataset: Dataset, size: int) -> Scores:
    """Return the mean loss over the split; the figure of an example is that of its batch."""
    slices = list(_slices(len(dataset), size))
    losses = [step.loss(dataset.batch(range(len(dataset))[rows]).inputs) for rows in slices]
    weights = [len(range(len(dataset))[rows]) for rows in slices]
    mean = float(np.average(losses, weights=weights))
    return Scores({"loss": mean}, np.repeat(losses, weights))


def embed_all(step: Step, pairs: Pairs, name: str) -> Array:
    """Return the embedding of text NAME of every pair, shape ``(pairs, width)``."""
    shortest_first = sorted(range(len(pairs)), key=lambda row: len(pairs.ids[name][row]))
    parts = []
    for at in range(0, len(pairs), EMBED_ROWS):
        rows = shortest_first[at : at + EMBED_ROWS]
        filled = [*rows, *[rows[-1]] * (EMBED_ROWS - len(rows))]
        ids, mask = pairs.padded(name, filled)
        parts.append(step.embed({"ids": ids, "mask": mask})[: len(rows)])
    embeddings: Array = np.empty_like(np.concatenate(parts))
    embeddings[shortest_first] = np.concatenate(parts)
    return embeddings


def _slices(count: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of SIZE; a remainder joins none unless there is nothing else."""
    whole = range(0, count - size + 1, size) if count >= size else range(1)
    for at in whole:
        yield slice(at, at + size)


def improved(new: float, best: float | None, *, higher_is_better: bool) -> bool:
    """Return whether NEW is strictly better than BEST; the first figure is."""
    if best is None:
        return True
    return new > best if higher_is_better else new < best
