"""The figures of a model on a split; nothing here draws a random number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, cast

import numpy as np

from ..converters.values import Array
from .data.batches import Dataset
from .data.pairs import Pairs
from .data.retrieval import contrastive_loss, ranks, retrieval_metrics
from .steps.base import Step, shares

EMBED_ROWS: Final = 32  # texts embedded at a time; the last ones are filled up, so shapes stay few


class Scores(NamedTuple):
    """The figures of a split, and one number per example to compare two models by."""

    metrics: dict[str, float]
    per_example: Array


Measure = Callable[[Step, Dataset, int], Scores]


def measure_retrieval(step: Step, dataset: Dataset, size: int, temperature: float) -> Scores:
    """Return loss, P@1, MRR and R@10 of finding every pair's document among all of the split.

    The loss is that of training, over batches of SIZE pairs in one fixed random order: neighbours
    in a file are often related and would be harder to tell apart.
    """
    pairs = cast(Pairs, dataset)
    queries, documents = (embed_all(step, pairs, name) for name in ("query", "document"))
    rank = ranks(queries, documents)
    mixed = np.random.default_rng(0).permutation(len(pairs))
    losses = [
        contrastive_loss(queries[mixed[part]], documents[mixed[part]], temperature)
        for part in _slices(len(pairs), size)
    ]
    return Scores({"loss": float(np.mean(losses))} | retrieval_metrics(rank), 1 / rank)


def measure_loss(step: Step, dataset: Dataset, size: int) -> Scores:
    """Return the mean loss over the split; the figure of an example is that of its batch.

    Batches count as micro-batches of an update do.
    """
    batches = [
        dataset.batch(range(len(dataset))[part]) for part in _slices(len(dataset), size, rest=True)
    ]
    counted = shares(step.weight, batches)
    losses = [step.loss(batch.inputs) for batch, _ in counted]
    mean = float(np.average(losses, weights=[share for _, share in counted]))
    return Scores({"loss": mean}, np.repeat(losses, [batch.rows for batch, _ in counted]))


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


def _slices(count: int, size: int, *, rest: bool = False) -> Iterator[slice]:
    """Yield consecutive slices of SIZE; a remainder only with REST or where there is nothing else."""
    whole = count if rest or count < size else count - count % size
    for at in range(0, whole, size):
        yield slice(at, min(at + size, count))


def improved(new: float, best: float | None, *, higher_is_better: bool) -> bool:
    """Return whether NEW is strictly better than BEST; the first figure is."""
    if best is None:
        return True
    return new > best if higher_is_better else new < best
