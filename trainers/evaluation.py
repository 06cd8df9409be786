"""The figures of a model on a split; nothing here draws a random number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from ..converters.values import Array
from .data.batches import Dataset
from .data.classes import class_metrics, label_metrics
from .data.pairs import Pairs
from .data.retrieval import ranks_of, retrieval_metrics
from .steps.base import Step, shares

ANSWERS: Final = frozenset({"labels", "target"})  # what a model has to find: none of its inputs
EMBED_ROWS: Final = 32  # texts embedded at a time; the last ones are filled up, so shapes stay few


class Scores(NamedTuple):
    """The figures of a split, and the numbers that one of them is the mean of, to compare two models by.

    Attributes:
        metrics: the figures.
        of: which of them ``each`` is of.
        each: a number for every example, or for every batch where only batches have one.
        counts: how much each number counts in the mean; ``None`` where all count the same.
    """

    metrics: dict[str, float]
    of: str
    each: Array
    counts: Array | None = None


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Measure = Callable[[Step, Dataset, int], Scores]


def figures(*names: str) -> Callable[[F], F]:
    """Return what notes of a measure that it finds NAMES and no others, whatever the data."""

    def noted(measure: F) -> F:
        measure.figures = names  # type: ignore[attr-defined]
        return measure

    return noted


class Judge(Protocol):
    """What compares embeddings, and gives the loss of training to what it finds."""

    def scored(self, queries: Array, documents: Array) -> Array:
        """Return how near each of QUERIES is to each of DOCUMENTS, in float64."""
        ...

    def loss_of(self, scores: Array) -> float:
        """Return the loss of SCORES, in which document i is query i's."""
        ...


def measure_retrieval(step: Step, dataset: Dataset, size: int, judge: Judge) -> Scores:
    """Return loss, P@1, MRR and R@10 of finding every pair's document among all of the split.

    The loss is that of training, over batches of SIZE pairs in one fixed random order: neighbours
    in a file are often related and would be harder to tell apart.
    """
    pairs = cast(Pairs, dataset)
    scores = judge.scored(*(embed_all(step, pairs, name) for name in ("query", "document")))
    rank = ranks_of(scores)
    mixed = np.random.default_rng(0).permutation(len(pairs))
    losses = [
        judge.loss_of(scores[np.ix_(mixed[part], mixed[part])])
        for part in in_slices(len(pairs), size)
        if len(part) == min(size, len(pairs))
    ]
    return Scores({"loss": float(np.mean(losses))} | retrieval_metrics(rank), "mrr", 1 / rank)


@figures("loss")
def measure_loss(step: Step, dataset: Dataset, size: int) -> Scores:
    """Return the mean loss over the split, from those of batches, which count as in an update."""
    batches = [dataset.batch(rows) for rows in in_slices(len(dataset), size)]
    counted = shares(step.weight, batches)
    losses = np.array([step.loss(batch.inputs) for batch, _ in counted])
    counts = np.array([share for _, share in counted])
    return Scores({"loss": float(losses @ counts)}, "loss", losses, counts)


@figures("loss", "perplexity")
def measure_tokens(step: Step, dataset: Dataset, size: int) -> Scores:
    """Return the mean loss over the tokens of the split, and the perplexity: e to the power of it."""
    scores = measure_loss(step, dataset, size)
    perplexity = float(np.exp(scores.metrics["loss"]))
    return scores._replace(metrics=scores.metrics | {"perplexity": perplexity})


@figures("loss", "mae", "r2")
def measure_regression(step: Step, dataset: Dataset, size: int) -> Scores:  # noqa: ARG001
    """Return mean squared error (the loss), mean absolute error, and the share of variance explained.

    The figure of an example is its squared error.
    """
    found, wanted = predictions(step, dataset)
    error = found.reshape(wanted.shape) - wanted
    spread = wanted - wanted.mean(0)
    # Of what does not vary nothing is explained; a mean that is rounded leaves a spread all the same.
    varies = bool((wanted != wanted[:1]).any())
    explained = 1 - float(np.sum(error**2) / np.sum(spread**2)) if varies else 0.0
    figures = {"loss": float(np.mean(error**2)), "mae": float(np.mean(np.abs(error)))}
    each = (error**2).reshape(len(error), -1).mean(1)
    return Scores(figures | {"r2": explained}, "loss", np.asarray(each))


@figures("loss", "accuracy", "balanced_accuracy", "macro_f1", "matthews", "label_accuracy")
def measure_classes(step: Step, dataset: Dataset, size: int) -> Scores:
    """Return the loss and how many examples are right, see :mod:`.data.classes`; each is 1 where it is."""
    loss = measure_loss(step, dataset, size).metrics
    found, wanted = predictions(step, dataset)
    if wanted.ndim > 1:
        chosen, wanted = (found > 0).astype(int), wanted.astype(int)
        right = (chosen == wanted).all(1) * 1.0
        return Scores(loss | label_metrics(chosen, wanted), "accuracy", right)
    chosen = found.argmax(1) if found.shape[1] > 1 else (found[:, 0] > 0).astype(int)
    chosen, wanted = chosen[wanted >= 0], wanted[wanted >= 0].astype(int)
    return Scores(loss | class_metrics(chosen, wanted), "accuracy", (chosen == wanted) * 1.0)


def without_answers(inputs: Mapping[str, T]) -> dict[str, T]:
    """Return INPUTS without what the model has to find."""
    return {name: array for name, array in inputs.items() if name not in ANSWERS}


def found_by(step: Step, dataset: Dataset, size: int) -> Array:
    """Return what the module for evaluation finds of every example, in float64, SIZE at a time."""
    found: list[Array] = []
    for rows in in_slices(len(dataset), size):
        filled = [*rows, *[rows[-1]] * (size - len(rows))]
        found += [*step.embed(dataset.batch(filled).inputs)[: len(rows)]]
    return np.stack(found).astype(np.float64)


def predictions(step: Step, dataset: Dataset) -> tuple[Array, Array]:
    """Return what the model finds of every example, in float64, and what is right."""
    count = len(dataset)
    order = sorted(range(count), key=dataset.length)
    found: list[Array] = []
    wanted: list[Array] = []
    for at in range(0, count, EMBED_ROWS):
        rows = order[at : at + EMBED_ROWS]
        inputs = dataset.batch([*rows, *[rows[-1]] * (EMBED_ROWS - len(rows))]).inputs
        found += [*step.embed(without_answers(inputs))[: len(rows)]]
        wanted += [*next(inputs[name] for name in inputs if name in ANSWERS)[: len(rows)]]
    places = np.argsort(order)
    return np.stack(found).astype(np.float64)[places], np.stack(wanted).astype(np.float64)[places]


def embed_all(step: Step, pairs: Pairs, name: str) -> Array:
    """Return the embedding of text NAME of every pair, shape ``(pairs, width)``.

    Those of tokens are ``(pairs, tokens, width)``, with zeros behind the last token.
    """
    shortest_first = sorted(range(len(pairs)), key=lambda row: len(pairs.ids[name][row]))
    found: list[Array] = []
    for at in range(0, len(pairs), EMBED_ROWS):
        rows = shortest_first[at : at + EMBED_ROWS]
        filled = [*rows, *[rows[-1]] * (EMBED_ROWS - len(rows))]
        ids, mask = pairs.padded(name, filled)
        found += [*step.embed({"ids": ids, "mask": mask})[: len(rows)]]
    longest = found[-1].shape  # the last texts are the longest
    embeddings = np.zeros((len(pairs), *longest), found[0].dtype)
    for row, embedding in zip(shortest_first, found, strict=True):
        embeddings[row, : len(embedding)] = embedding
    return embeddings


def in_slices(count: int, size: int) -> Iterator[Sequence[int]]:
    """Yield the numbers below COUNT in consecutive slices of SIZE, the last perhaps shorter."""
    yield from (range(count)[at : at + size] for at in range(0, count, size))


def improved(new: float, best: float | None, *, higher_is_better: bool) -> bool:
    """Return whether NEW is strictly better than BEST; the first figure is, and one that is not finite never.

    >>> improved(math.inf, 0.5, higher_is_better=True), improved(0.5, math.nan, higher_is_better=True)
    (False, True)
    """
    if best is None or not math.isfinite(new):
        return best is None
    if not math.isfinite(best):
        return True
    return new > best if higher_is_better else new < best
