"""One tensor is found inside another, wherever it lies, and nowhere else."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.parity.weights.assembly import outline
from weighbridge.parity.weights.places import describe_rows, find_place, may_hold, whole_of
from weighbridge.parity.weights.sketches.sketch import sketch

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


@given(st.lists(st.integers(2, 4), min_size=2, max_size=3), st.data())
def test_rows_found_are_the_rows_that_were_cut(shape, data):
    whole = np.random.default_rng(data.draw(st.integers(0, 9))).normal(size=shape)
    axis = data.draw(st.integers(0, len(shape) - 2))
    start = data.draw(st.integers(0, shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, shape[axis]))
    part = np.ascontiguousarray(np.take(whole, range(start, stop), axis))
    order = data.draw(st.sampled_from(list(permutations(range(part.ndim)))))
    place = find_place(np.ascontiguousarray(part.transpose(order)), whole_of(whole))
    if part.size < 4 or part.size == whole.size:
        assert place is None
        return
    table = whole.swapaxes(-1, -2) if place.turned else whole
    rows = np.ascontiguousarray(table).reshape(-1, table.shape[-1])[place.rows]
    assert np.array_equal(np.sort(rows.ravel()), np.sort(part.ravel()))


CUTS = {
    "stacked": ((5, 6, 7), lambda w: w[3]),
    "rows": ((12, 7), lambda w: w[4:9]),
    "rows of every head": ((3 * (4 + 5), 7), lambda w: w.reshape(3, 9, 7)[:, 4:]),
    "rows of every head, turned": (
        (3 * (4 + 5), 7),
        lambda w: w.reshape(3, 9, 7)[:, :4].transpose(0, 2, 1),
    ),
    "every second": ((5, 8, 7), lambda w: w[:, 1::2]),
    "columns": ((6, 12), lambda w: w[:, 4:8]),
    "columns of every expert, turned": ((3, 6, 10), lambda w: w[:, :, :5].transpose(0, 2, 1)),
    "part of a bias": ((24,), lambda w: w[8:14]),
}


@pytest.mark.parametrize("case", CUTS)
def test_parts_that_libraries_cut_are_found(case):
    shape, cut = CUTS[case]
    whole = normal(*shape)
    part = np.ascontiguousarray(cut(whole))
    assert may_hold(whole.shape, part.shape)
    assert len(find_place(part, whole_of(whole)).rows) > 0


@pytest.mark.parametrize("case", CUTS)
def test_one_changed_bit_is_nowhere(case):
    shape, cut = CUTS[case]
    whole = normal(*shape)
    part = np.array(cut(whole), order="C")
    part.reshape(-1)[-1] = np.nextafter(part.reshape(-1)[-1], np.float32(9))
    assert find_place(part, whole_of(whole)) is None


def test_rows_in_another_order_are_nowhere():
    whole = normal(12, 7)
    assert find_place(np.ascontiguousarray(whole[[4, 6, 5]]), whole_of(whole)) is None


def test_packed_integers_are_found_by_their_bytes():
    blocks = RANDOM.integers(0, 256, (3, 8, 2, 16), dtype=np.uint8)
    gate = np.ascontiguousarray(blocks[:, ::2]).reshape(3, 4, 32).view(np.uint32)
    assert find_place(gate, whole_of(blocks.reshape(3, 8, 32))).rows.tolist()[:3] == [0, 2, 4]


def test_sketches_alone_tell_rows_that_lie_as_they_do_in_the_whole():
    whole = normal(27, 7)
    part = np.ascontiguousarray(whole.reshape(3, 9, 7)[:, 4:])
    exact, sketched = find_place(part, whole_of(whole)), find_place(part, outline(sketch(whole)))
    assert np.array_equal(exact.rows, sketched.rows)


def test_rows_are_told_in_words():
    assert describe_rows(np.array([0, 1, 4, 5]), 8) == "4 of 8 rows in equal blocks from row 0"
