"""Retrieval figures against their definitions, written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.data.retrieval import paired_bootstrap, ranks, retrieval_metrics


def unit(generator, rows):
    vectors = generator.normal(size=(rows, 6))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@given(st.integers(1, 30), st.integers(0, 1000))
def test_ranks_are_places_in_the_sorted_list(rows, seed):
    generator = np.random.default_rng(seed)
    queries, documents = unit(generator, rows), unit(generator, rows)
    for row, rank in enumerate(ranks(queries, documents)):
        best_first = np.argsort(-(documents @ queries[row]))
        assert best_first.tolist().index(row) + 1 == rank


@given(st.integers(2, 30), st.data())
def test_what_is_not_a_number_finds_nothing_and_helps_nobody(rows, data):
    generator = np.random.default_rng(0)
    queries, documents = unit(generator, rows), unit(generator, rows)
    before = ranks(queries, documents)
    lost = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, unique=True))
    documents[lost] = np.nan
    after = ranks(queries, documents)
    assert (after[lost] == rows).all()
    assert (after >= before).all()


def test_a_model_that_maps_everything_to_one_point_finds_nothing():
    same = np.ones((20, 4)) / 2
    metrics = retrieval_metrics(ranks(same, same))
    assert metrics == pytest.approx({"p@1": 0.0, "mrr": 1 / 20, "r@10": 0.0})


def test_the_interval_repeats_holds_the_mean_and_matches_the_normal_one():
    generator = np.random.default_rng(3)
    before = generator.uniform(size=400)
    after = before + generator.normal(0.1, 0.5, size=400)
    found = paired_bootstrap(before, after)
    assert found == paired_bootstrap(before, after)
    assert found != paired_bootstrap(before, after, seed=1)
    change = after - before
    error = 1.96 * change.std() / np.sqrt(len(change))
    assert found.difference == pytest.approx(change.mean())
    assert found.low == pytest.approx(change.mean() - error, abs=0.005)
    assert found.high == pytest.approx(change.mean() + error, abs=0.005)


def test_the_interval_of_weighted_numbers_is_that_of_what_they_stand_for():
    before, after, counts = np.zeros(3), np.array([1.0, 2.0, 4.0]), np.array([1, 2, 1])
    found = paired_bootstrap(before, after, counts / 4)
    assert found.difference == pytest.approx(np.repeat(after, counts).mean())
    assert (found.low, found.high) == (1.0, 4.0)
    assert paired_bootstrap(before, after, np.full(3, 0.2)) == pytest.approx(
        paired_bootstrap(before, after)
    )
