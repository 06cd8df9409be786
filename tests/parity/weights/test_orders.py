"""An order is found from one figure per row and told in the largest blocks that moved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.parity.weights.orders import (
    block_size,
    describe_order,
    interleaved,
    match_rows,
    ranges,
)

ORDERS = {
    "blocks of 4 rows moved: 1 <- 2, 2 <- 1": [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7],
    "2 of 5 rows moved: 1 <- 3, 3 <- 1": [0, 3, 2, 1, 4],
    "rows interleaved: halves for pairs in blocks of 6": [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11],
    "blocks of 3 rows moved: 0 <- 2, 1 <- 0, 2 <- 1": [6, 7, 8, 0, 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("words", ORDERS)
def test_order_is_told(words: str) -> None:
    assert describe_order(ORDERS[words]) == words


@given(st.permutations(range(12)), st.integers(0, 99))
def test_any_permutation_is_found_through_noise(order: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    wanted = np.arange(12) + random.uniform(-0.2, 0.2, 12)
    found = wanted[order] + random.uniform(-1e-3, 1e-3, 12)
    matched = match_rows(found, wanted, 1e-3)
    assert matched is not None
    assert matched.tolist() == order


def test_equal_rows_stay_where_they_are() -> None:
    matched = match_rows(np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.0)
    assert matched is not None
    assert matched.tolist() == [0, 1, 2]


def test_a_row_from_elsewhere_is_no_match() -> None:
    assert match_rows(np.array([1.0, 5.0]), np.array([1.0, 2.0]), 0.1) is None
    assert match_rows(np.array([1.0, 2.0, 1.0]), np.array([1.0, 2.0]), 0.1) is None


@given(st.integers(1, 6), st.permutations(range(5)))
def test_block_size_is_the_largest(size: int, blocks: list[int]) -> None:
    order = [block * size + at for block in blocks for at in range(size)]
    found = block_size(order)
    assert found % size == 0
    assert order == [
        order[at * found] + k for at in range(len(order) // found) for k in range(found)
    ]


@given(st.sampled_from([4, 6, 8]), st.integers(1, 3))
def test_both_ways_of_interleaving_are_told(size: int, heads: int) -> None:
    pairs = np.arange(size * heads).reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)
    assert interleaved(pairs.tolist(), size)
    assert interleaved(np.argsort(pairs).tolist(), size)
    assert not interleaved(list(range(size * heads)), size)


def test_ranges_are_shortened() -> None:
    assert ranges(np.array([0, 2, 4, 6, 8, 10])) == "0, 2, 4, 6 and 2 more"
