"""Evaluation: every example once, in its own place."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.trainers.data.pairs import Pairs, Texts
from weighbridge.trainers.evaluation import embed_all, improved, measure_loss
from weighbridge.trainers.runs.loop import make_step


class Lengths:
    """Embeds a text as its length and its first id, and notes the shapes it was given."""

    def __init__(self):
        self.shapes = set()

    def embed(self, inputs):
        self.shapes.add(inputs["ids"].shape)
        return np.stack([inputs["mask"].sum(1), inputs["ids"][:, 0]], 1).astype(np.float32)


def test_embeddings_come_back_in_the_order_of_the_texts_in_few_shapes():
    texts = [("x" * (number % 7 + 1), "y") for number in range(75)]
    pairs = Pairs(
        Texts(texts, {}),
        lambda column: [[len(text) + 1] * len(text) for text in column],
        {"query": [4, 8], "document": [4]},
    )
    step = Lengths()
    found = embed_all(step, pairs, "query")
    assert found[:, 0].tolist() == [len(query) for query, _ in texts]
    assert found[:, 1].tolist() == [len(query) + 1 for query, _ in texts]
    assert step.shapes == {(32, 4), (32, 8)}


@pytest.mark.parametrize("size", [5, 12, 20])
def test_the_mean_loss_does_not_depend_on_the_batch_size(size, series_config, series_task):
    config = series_config()
    task = series_task(config)
    step = make_step("torch", task, config)
    whole = step.loss(task.splits["validation"].batch(range(12)).inputs)
    scores = measure_loss(step, task.splits["validation"], size)
    assert scores.metrics["loss"] == pytest.approx(whole, rel=1e-6)
    assert scores.each @ scores.counts == pytest.approx(whole, rel=1e-6)
    assert len(scores.each) == -(-12 // size)  # an example has no loss of its own


@pytest.mark.parametrize(
    ("new", "best", "higher", "better"),
    [
        (1.0, None, True, True),
        (2.0, 1.0, True, True),
        (1.0, 1.0, True, False),
        (2.0, 1.0, False, False),
        (np.nan, 1.0, True, False),
        (np.inf, 1.0, True, False),
        (-np.inf, 1.0, False, False),
        (np.nan, None, True, True),
        (1.0, np.nan, False, True),
    ],
)
def test_only_a_strict_improvement_counts(new, best, higher, better):
    assert improved(new, best, higher_is_better=higher) is better
