"""Embed texts with any runner, and measure how well docstrings find their functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weighbridge.converters.runtimes import Runner
from weighbridge.trainers.data.pairs import Pairs, read_pairs
from weighbridge.trainers.data.retrieval import ranks, retrieval_metrics
from weighbridge.trainers.data.tokens.coding import load_tokenizer

LENGTHS = {"query": (24,), "document": (48,)}
BATCH = 25  # within the batch that the Core ML package allows


class Retrieval(NamedTuple):
    """Ranks of the right answers, and what follows from them."""

    ranks: np.ndarray
    metrics: dict[str, float]


def load_test(pairs: Path, model: Path) -> Pairs:
    """Read and tokenise the test pairs."""
    return Pairs(read_pairs(pairs), load_tokenizer(model), LENGTHS)


def mean_pool(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Average HIDDEN (batch, sequence, width) over the tokens of MASK and scale to unit length."""
    weights = mask[..., None].astype(np.float32)
    pooled = (hidden.astype(np.float32) * weights).sum(1) / weights.sum(1)
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)


def embed(
    runner: Runner, data: Pairs, field: str, rows: Sequence[int], advance: Callable[[int], None]
) -> np.ndarray:
    """Embed the texts FIELD of ROWS, a batch at a time."""
    embedded = []
    for start in range(0, len(rows), BATCH):
        ids, mask = data.padded(field, rows[start : start + BATCH])
        hidden = runner.run({"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
        embedded.append(mean_pool(hidden, mask))
        advance(len(ids))
    return np.concatenate(embedded)


def evaluate(runner: Runner, data: Pairs, count: int, advance: Callable[[int], None]) -> Retrieval:
    """Rank the first COUNT documents for each of their queries."""
    rows = range(min(count, len(data)))
    rank = ranks(
        embed(runner, data, "query", rows, advance), embed(runner, data, "document", rows, advance)
    )
    return Retrieval(rank, retrieval_metrics(rank))
