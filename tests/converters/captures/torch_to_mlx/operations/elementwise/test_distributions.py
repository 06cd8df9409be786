"""Samples drawn in MLX: the distribution is torch's, by mean, spread and quartiles of many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

MANY = torch.zeros(40_000)
DISTRIBUTIONS = {
    "uniform": lambda x: x.clone().uniform_(-1, 3),
    "normal": lambda x: x.clone().normal_(2, 3),
    "exponential": lambda x: x.clone().exponential_(0.5),
    "cauchy": lambda x: x.clone().cauchy_(1, 2),
    "geometric": lambda x: x.clone().geometric_(0.3),
    "log_normal": lambda x: x.clone().log_normal_(0.1, 0.5),
    "normal around tensors": lambda x: torch.normal(x + 1, 0.5),
    "normal with spreads": lambda x: torch.normal(0.0, x + 2),
    "randint": lambda x: torch.randint(3, 17, x.shape),
    "randint_like": lambda x: torch.randint_like(x, 9),
    "bernoulli": lambda x: torch.bernoulli(x + 0.3),
    "leaks": lambda x: torch.nn.functional.rrelu(x - 1, 0.1, 0.6, training=True),
    "multinomial": lambda x: torch.multinomial(torch.tensor([1.0, 0, 2, 5]), len(x), True),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_are_distributed_as_in_torch(drawn, name):
    function = DISTRIBUTIONS[name]
    ours, theirs = drawn(function, MANY), function(MANY).numpy()
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    parts = [0.05, 0.25, 0.5, 0.75, 0.95]
    spread = np.quantile(theirs, 0.95) - np.quantile(theirs, 0.05)
    gaps = np.quantile(ours, parts) - np.quantile(theirs, parts)
    whole = np.issubdtype(theirs.dtype, np.integer) or np.all(theirs == np.round(theirs))
    assert np.abs(gaps).max() <= (1 if whole else 0.04 * spread)
    assert np.abs(np.clip(ours, -50, 50).mean() - np.clip(theirs, -50, 50).mean()) < 0.03 * spread


def test_each_draw_is_another(drawn):
    assert not np.array_equal(
        drawn(DISTRIBUTIONS["normal"], MANY), drawn(DISTRIBUTIONS["normal"], MANY)
    )


def test_draws_without_replacement_and_permutations_repeat_nothing(drawn):
    taken = drawn(lambda x: torch.multinomial(x + 1, 100), torch.zeros(5, 200))
    assert all(len(set(row)) == 100 for row in taken)
    assert sorted(drawn(lambda x: torch.randperm(len(x)), torch.zeros(30))) == list(range(30))


def test_weights_of_zero_are_never_drawn(drawn):
    weights = torch.tensor([0.0, 1, 0, 3])
    assert set(drawn(lambda w: torch.multinomial(w, 1000, True), weights)) == {1, 3}
    assert set(drawn(lambda w: torch.multinomial(w, 2), weights)) == {1, 3}
