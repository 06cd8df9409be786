"""The order of the data: repeatable, undisturbed, without twins."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.errors import BadInputError
from weighbridge.trainers.data.batches import Order, fill
from weighbridge.trainers.data.tokens.alike import alike


class Numbers:
    """Rows with a length and a key of their own."""

    def __init__(self, lengths, keys=None):
        self.lengths, self._keys = lengths, keys or range(len(lengths))

    def __len__(self):
        return len(self.lengths)

    def length(self, row):
        return self.lengths[row]

    def keys(self, row):
        return (self._keys[row],)


def order(dataset, size=4, seed=1, group=True):
    return Order(dataset, size, seed, group_by_length=group)


@given(keys=st.lists(st.integers(0, 6), max_size=60), size=st.integers(1, 6))
def test_rows_are_used_once_and_twins_never_meet(keys, size):
    batches = fill(range(len(keys)), size, lambda row: [keys[row]])
    used = Counter(row for batch in batches for row in batch)
    assert all(count == 1 for count in used.values())
    assert all(len(batch) == len({keys[row] for row in batch}) == size for batch in batches)
    left = Counter(keys[row] for row in set(range(len(keys))) - set(used))
    assert len(left) < size  # whatever is left could not have made another batch


def test_an_epoch_uses_every_row_that_fits():
    dataset = Numbers(list(range(30)))
    sequence = order(dataset)
    rows = [row for position in range(7) for row in sequence[position]]
    assert len(rows) == len(set(rows)) == 28
    assert [sequence.epoch(position) for position in (0, 6, 7, 14)] == [0, 0, 1, 2]


@pytest.mark.parametrize("group", [True, False])
def test_epochs_and_seeds_differ_and_repeat(group):
    dataset = Numbers([number % 5 for number in range(30)])

    def epoch(number, seed):
        sequence = order(dataset, seed=seed, group=group)
        return [sequence[position] for position in range(number * 7, number * 7 + 7)]

    assert epoch(1, 1) == epoch(1, 1)
    assert epoch(0, 1) != epoch(1, 1)
    assert epoch(0, 1) != epoch(0, 2)


def test_a_position_is_the_same_however_one_comes_to_it():
    dataset = Numbers(list(range(17)), keys=[number // 2 for number in range(17)])
    straight, jumping = order(dataset), order(dataset)
    expected = [straight[position] for position in range(40)]
    for position in (39, 0, 17, 16, 38, 3):
        assert jumping[position] == expected[position]


def test_other_random_numbers_do_not_change_the_order():
    dataset = Numbers(list(range(30)))
    expected = [order(dataset)[position] for position in range(20)]
    sequence = order(dataset)
    for position in range(20):
        np.random.seed(position)  # noqa: NPY002 - the global generator that nothing may depend on
        np.random.rand(3)  # noqa: NPY002
        assert sequence[position] == expected[position]


def test_grouped_batches_are_more_alike_in_length():
    generator = np.random.default_rng(0)
    dataset = Numbers(generator.integers(1, 100, 400).tolist())

    def spread(group):
        sequence = order(dataset, group=group)
        batches = [[dataset.length(row) for row in sequence[position]] for position in range(100)]
        return np.mean([max(batch) - min(batch) for batch in batches])

    assert spread(True) < spread(False) / 4


@pytest.mark.parametrize("keys", [None, [0] * 9])
def test_data_that_fill_no_batch_are_refused(keys):
    with pytest.raises(BadInputError, match="do not fill a batch of 10"):
        order(Numbers([1] * 9, keys), size=10)


class Widths(Numbers):
    """Rows of which those of one ten are padded to one length."""

    def width(self, row):
        return self.lengths[row] // 10


def test_rows_of_one_padded_length_meet_and_every_row_has_its_turn():
    dataset = Widths([number % 50 for number in range(203)])
    sequence = order(dataset)
    epoch = [sequence[position] for position in range(50)]
    mixed = [batch for batch in epoch if len({dataset.width(row) for row in batch}) > 1]
    assert len(mixed) <= 4
    assert len({row for batch in epoch for row in batch}) == 200
    assert [sequence.epoch(position) for position in (49, 50)] == [0, 1]
    missed = [
        set(range(203)) - {row for at in range(50) for row in sequence[50 * e + at]}
        for e in range(9)
    ]
    assert not set.intersection(*missed)  # least of all the longest, which stand last


@pytest.mark.parametrize("group", [True, False])
@given(
    widths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=12, max_size=60),
    most=st.integers(1, 400),
)
def test_no_batch_is_padded_to_more_tokens_than_there_may_be(group, widths, most):
    dataset = Numbers([*map(sum, widths)])
    dataset.width = widths.__getitem__
    limited = Order(dataset, 8, 0, group_by_length=group, most_tokens=most)
    whole = Order(dataset, 8, 0, group_by_length=group)

    def first_epoch(sequence):
        return [*itertools.takewhile(lambda at: sequence.epoch(at) == 0, itertools.count())]

    batches = [limited[at] for at in first_epoch(limited)]
    for batch in batches:
        padded = len(batch) * sum(max(widths[row][field] for row in batch) for field in (0, 1))
        assert len(batch) == 1 or padded <= most
    rows = sorted(row for at in first_epoch(whole) for row in whole[at])
    assert sorted(row for batch in batches for row in batch) == rows


def test_texts_that_are_long_in_one_field_share_a_batch_whatever_the_other_is(monkeypatch):
    generator = np.random.default_rng(0)
    widths = np.ceil(generator.lognormal([3, 4.5], [0.8, 0.9], (640, 2))).astype(int)

    def padded():
        found = alike(np.arange(640), widths, 64)
        assert sorted(found) == [*range(640)]
        return widths[found].reshape(-1, 64, 2).max(1).sum()

    ours = padded()
    monkeypatch.setattr(
        "weighbridge.trainers.data.tokens.alike.FEW", 0
    )  # sorted by one of the fields
    assert ours < 0.98 * padded()


def test_rows_of_two_padded_lengths_meet_with_less_padding_than_sorted_ones():
    generator = np.random.default_rng(0)
    widths = generator.lognormal(3, 1, (400, 2)).astype(int)
    widths[:, 1] *= 4
    rows = generator.permutation(400)

    def padded(ordered):
        batches = widths[ordered].reshape(-1, 16, 2)
        return batches.max(1).sum()

    found = alike(rows, widths, 16)
    assert sorted(found) == sorted(rows)
    assert padded(found) < 0.95 * padded(
        sorted(rows, key=lambda row: (widths[row, 1], widths[row, 0]))
    )
    one = alike(rows, widths[:, :1], 16)
    assert padded(one) > padded(found)
    assert widths[one, 0].reshape(-1, 16).max(1).sum() == np.sort(widths[:, 0])[15::16].sum()
