"""Texts read in calls: what each call is given, and what comes out together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.texts import Text, each_row, read_rows, text_of
from weighbridge.errors import MismatchError

TEXT = Text("ids", "at")


def summing():
    """Return a call whose state is the sum of all tokens it has read."""
    total = [0]

    def call(inputs):
        assert inputs["at"].dtype == np.int32
        sums = total[0] + np.cumsum(inputs["ids"], axis=1)
        total[0] = int(sums[0, -1])
        return {"y": sums}

    return call


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 3))
def test_pieces_give_what_one_call_gives(sizes, rows):
    ids = np.random.default_rng(0).integers(0, 9, (rows, sum(sizes)))
    found = read_rows(TEXT, {"ids": ids}, summing, sizes)["y"]
    np.testing.assert_array_equal(found, np.cumsum(ids, axis=1))
    np.testing.assert_array_equal(found, read_rows(TEXT, {"ids": ids}, summing)["y"])


@pytest.mark.parametrize("inputs", [{}, {"ids": np.ones(3)}, {"ids": np.ones((0, 3))}])
def test_inputs_without_rows_of_ids_are_refused(inputs):
    with pytest.raises(MismatchError, match="ids is"):
        read_rows(TEXT, inputs, summing)


def test_a_correction_of_all_rows_is_cut_and_another_is_left():
    ids, many, one = np.ones((2, 3)), np.arange(4.0).reshape(2, 2), np.ones((1, 2))
    rows = [theirs for _, theirs in each_row(TEXT, {"ids": ids}, {"many": many, "one": one})]
    assert [row["many"].tolist() for row in rows] == [[[0, 1]], [[2, 3]]]
    assert all(row["one"] is one for row in rows)


@pytest.mark.parametrize("said", [None, [], {"ids": "x"}, {"ids": "x", "position": 3}])
def test_a_damaged_record_says_nothing(said):
    assert text_of({"text": said}) is None
