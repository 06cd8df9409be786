"""The assignment is the best of all."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weighbridge.converters.maps.infer.assignment import assign

SQUARES = st.integers(0, 6).flatmap(
    lambda n: arrays.arrays(float, (n, n), elements=st.floats(-100, 100, width=32))
)


@given(SQUARES)
def test_no_other_assignment_is_better(score):
    chosen = assign(score)
    rows = range(len(score))
    assert sorted(chosen) == list(rows)
    best = max(sum(score[rows, order]) for order in permutations(rows)) if len(score) else 0
    assert sum(score[rows, chosen]) == pytest.approx(best, abs=1e-6)


def test_a_large_one_is_quick_and_right():
    hidden = np.random.default_rng(0).permutation(120)
    score = np.random.default_rng(1).random((120, 120))
    score[np.arange(120), hidden] += 1
    assert assign(score) == hidden.tolist()
