"""Padded lengths chosen from the data: the best ones, as few as do."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.data.tokens import buckets
from weighbridge.trainers.data.tokens.buckets import chosen, fitting


def cost(lengths, ends):
    return sum(fitting(ends, length) for length in lengths)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_no_other_lengths_of_this_number_have_less_padding(lengths):
    found = chosen(lengths, max(lengths))
    others = combinations(sorted(set(lengths)), len(found))
    least = min(cost(lengths, ends) for ends in others if ends[-1] == max(lengths))
    assert cost(lengths, found) == least


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=300), st.integers(1, 2000))
def test_every_text_fits_within_the_limit(lengths, limit):
    found = chosen(lengths, limit)
    assert list(found) == sorted(set(found))
    assert found[-1] <= limit
    assert found[-1] >= min(max(lengths), limit)
    assert len(found) <= buckets.MOST


@pytest.mark.parametrize("mean", [3.0, 4.5, 6.0])
def test_lengths_of_real_text_are_padded_little(mean):
    lengths = np.random.default_rng(0).lognormal(mean, 0.7, 5000).astype(int) + 1
    found = chosen(lengths, int(lengths.max()))
    assert cost(lengths.tolist(), found) <= 1.15 * lengths.sum()
