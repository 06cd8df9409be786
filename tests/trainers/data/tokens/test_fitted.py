"""Pairs divided into batches with less padding than by like lengths alone, drawn anew every epoch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.trainers.data.batches import Order
from weighbridge.trainers.data.tokens.alike import alike
from weighbridge.trainers.data.tokens.fitted import Fitted, Lengths, mixed


def random(seed):
    return np.random.Generator(np.random.PCG64([seed]))


def lengths_of(count, seed=0):
    """Return two lengths of COUNT pairs, on a grid as padded lengths are."""
    drawn = random(seed).lognormal([3, 4.5], [0.8, 0.9], (count, 2))
    return (np.ceil(drawn / 16) * 16).astype(int)


def padded(rows, widths, size):
    return widths[rows].reshape(-1, size, 2).max(1).sum()


class Pairs:
    """Pairs that have nothing but lengths."""

    def __init__(self, widths):
        self.widths = widths

    def __len__(self):
        return len(self.widths)

    def width(self, row):
        return tuple(self.widths[row])

    def length(self, row):
        return sum(self.widths[row])

    def keys(self, row):
        return (row,)


def epochs(order, count):
    """Return the batches of the first COUNT epochs."""
    positions = itertools.takewhile(lambda at: order.epoch(at) < count, itertools.count())
    batches = [(order.epoch(position), order[position]) for position in positions]
    return [[batch for at, batch in batches if at == epoch] for epoch in range(count)]


@pytest.mark.parametrize("count", [320, 335])
def test_epochs_of_pairs_carry_less_padding_than_pairs_of_like_lengths(count):
    widths = lengths_of(count)
    found = epochs(Order(Pairs(widths), 16, 0, group_by_length=True), 3)
    ours, like = [], []
    for number, batches in enumerate(found):
        rows = [row for batch in batches for row in batch]
        assert len(set(rows)) == 320
        ours.append(padded(rows, widths, 16))
        like.append(padded(alike(random(number).permutation(rows), widths, 16), widths, 16))
    assert all(one <= other for one, other in zip(ours, like, strict=True))
    assert sum(ours) < 0.995 * sum(like)


def test_epochs_leave_out_other_pairs():
    widths = lengths_of(330)
    found = epochs(Order(Pairs(widths), 32, 0, group_by_length=True), 5)
    missed = [set(range(330)) - {row for batch in batches for row in batch} for batches in found]
    assert all(len(them) == 10 for them in missed)
    assert not set.intersection(*missed)


def test_an_epoch_is_the_same_whichever_was_looked_at_before():
    pairs = Pairs(lengths_of(165))
    straight = epochs(Order(pairs, 16, 5, group_by_length=True), 3)
    later = Order(pairs, 16, 5, group_by_length=True)
    assert [later[position] for position in range(20, 30)] == straight[2]
    assert [later[position] for position in range(10)] == straight[0]


def test_pairs_that_fit_in_several_batches_meet_others_every_epoch():
    order = Order(Pairs(np.array([(16, 32)] * 320)), 32, 0, group_by_length=True)
    first, second = epochs(order, 2)
    where = {row: number for number, batch in enumerate(first) for row in batch}
    assert all(len({where[row] for row in batch}) > 5 for batch in second)


@settings(max_examples=8)
@given(
    widths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=18, max_size=26),
    seed=st.integers(0, 9),
)
def test_every_row_has_its_place_whatever_the_lengths_are(widths, seed):
    size, widths = 2, np.array(widths)
    assert Fitted.takes(widths, size)
    divides = Fitted(widths, size, random(seed))
    rows = random(seed + 1).permutation(len(widths))[: len(widths) // size * size]
    found = divides.divided(rows, random(seed))
    assert sorted(found) == sorted(rows)
    assert padded(found, widths, size) <= padded(alike(rows, widths, size), widths, size)


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=6, max_size=6),
    batches=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=3),
)
def test_rows_fit_exactly_where_some_way_of_placing_them_does(rows, batches):
    grid = [np.arange(4)] * 2
    # Every length occurs, so that places are lengths.
    lengths = Lengths(np.array(rows), np.array(batches), grid)
    without = lengths._left(lengths._offered()[:, None])[1][0]
    seats = [batch for batch in batches for _ in range(2)]
    ways = itertools.permutations(seats)
    whole = any(
        all(row[0] <= seat[0] and row[1] <= seat[1] for row, seat in zip(rows, way, strict=True))
        for way in ways
    )
    assert (without == 0) == whole


def test_exchanges_leave_every_batch_as_long_as_it_was():
    widths = lengths_of(320)
    batches = alike(np.arange(320), widths, 32).reshape(-1, 32)
    found = mixed(batches, widths, random(0))
    assert sorted(found.ravel()) == [*range(320)]
    assert (widths[found].max(1) <= widths[batches].max(1)).all()
    assert (np.sort(found) != np.sort(batches)).any()


def test_lengths_say_whether_changes_of_one_make_all_rows_fit():
    grid = [np.array([1, 2])] * 2
    batches = np.zeros((2, 2), int)
    assert not Lengths(np.array([(1, 1), (0, 0)]), batches.copy(), grid).widen()
    assert Lengths(np.array([(1, 0), (0, 0)]), batches.copy(), grid).widen()
