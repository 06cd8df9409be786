"""Drawn numbers: of the documented distributions, the same for a seed, others without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from weighbridge.converters.captures.mlprogram.kernels import draws

SHAPE = (40, 500)
LEAST = 1e-4  # of a p-value: with a fixed seed the test says the same in every run


def test_normal_and_uniform_numbers_have_their_distributions():
    normal = draws.random_normal(SHAPE, 2.0, 3.0, seed=5).numpy().reshape(-1)
    assert stats.kstest(normal, "norm", (2.0, 3.0)).pvalue > LEAST
    uniform = draws.random_uniform(SHAPE, -1.0, 3.0, seed=5).numpy().reshape(-1)
    assert stats.kstest(uniform, "uniform", (-1.0, 4.0)).pvalue > LEAST
    assert uniform.min() >= -1
    assert uniform.max() < 3


def test_bernoulli_draws_ones_as_often_as_it_is_said():
    drawn = draws.random_bernoulli(SHAPE, 0.3, seed=5).numpy()
    assert set(np.unique(drawn)) == {0, 1}
    assert stats.binomtest(int(drawn.sum()), drawn.size, 0.3).pvalue > LEAST
    assert not draws.random_bernoulli(SHAPE, 0.0, seed=5).any()
    assert draws.random_bernoulli(SHAPE, 1.0, seed=5).all()


@pytest.mark.parametrize("mode", ["logits", "probs"])
def test_categories_are_drawn_as_often_as_their_probabilities_say(mode):
    chances = np.float32([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    with np.errstate(divide="ignore"):
        given = chances if mode == "probs" else np.log(chances)
    drawn = draws.random_categorical(torch.tensor(given), mode, 20_000, seed=5).numpy()
    for row, expected in zip(drawn, chances, strict=True):
        counts = np.bincount(row.astype(int), minlength=3)
        kept = expected > 0
        assert counts[~kept].sum() == 0
        assert stats.chisquare(counts[kept], expected[kept] * 20_000).pvalue > LEAST


def test_a_seed_gives_the_same_numbers_again_and_none_gives_others():
    first, again = (draws.random_normal((8,), seed=3) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(draws.random_normal((8,)), draws.random_normal((8,)))
