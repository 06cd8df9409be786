"""Two adapters are alike only if every update does the same, whatever the inputs of a model reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters.differences import disagreements, other_arrays
from weighbridge.converters.values import LowRank, with_scale


def update(seed=0, lead=(), rank=2, rows=5, columns=7):
    random = np.random.default_rng(seed)
    a = random.standard_normal((*lead, rank, columns)).astype(np.float32)
    b = random.standard_normal((*lead, rows, rank)).astype(np.float32)
    return LowRank(a, b, 1.5)


@given(st.integers(0, 50), st.integers(0, 3), st.floats(0.1, 20))
def test_padding_and_another_scale_are_no_difference(seed, padding, scale):
    one = update(seed)
    other = with_scale(one.padded(one.rank + padding), scale)
    assert disagreements({"w": one}, {"w": other}) == []


def swap_rows(it):
    return replace(it, b=it.b[..., [1, 0, *range(2, it.b.shape[-2])], :])


def swap_columns(it):
    return replace(it, a=it.a[..., [1, 0, *range(2, it.a.shape[-1])]])


def drop_an_expert(it):
    b = it.b.copy()
    b[1] = 0
    return replace(it, b=b)


def weaken_an_expert(it):
    b = it.b.copy()
    b[2] *= np.float32(1.00001)
    return replace(it, b=b)


def other_scale(it):
    return replace(it, scale=it.scale * 1.00001)


@pytest.mark.parametrize(
    "change", [swap_rows, swap_columns, drop_an_expert, weaken_an_expert, other_scale]
)
def test_one_changed_number_of_one_expert_is_told(change):
    one = update(lead=(4,))
    assert len(disagreements({"w": one}, {"w": change(one)})) == 1


def test_lost_and_new_updates_are_told_and_new_ones_of_nothing_are_not():
    one, nothing = update(), replace(update(), b=np.zeros((5, 2), np.float32))
    assert disagreements({"w": one}, {}) == ["w has no update any more"]
    assert disagreements({}, {"w": one}) == ["w has an update that the source has not"]
    assert disagreements({}, {"w": nothing}) == []


def test_another_magnitude_is_told():
    one = replace(update(), magnitude=np.ones(5, np.float32))
    other = replace(one, magnitude=np.full(5, 1.0001, np.float32))
    assert disagreements({"w": one}, {"w": other}) == ["w: the DoRA magnitudes differ"]


def test_a_number_that_is_none_is_told():
    one = update()
    assert disagreements({"w": one}, {"w": replace(one, b=one.b * np.float32(np.nan))})


def test_whole_tensors_are_compared_by_their_numbers():
    one = {"head": np.arange(6, dtype=np.float32)}
    assert other_arrays(one, {"head": np.arange(6, dtype=np.float64)}) == []
    assert other_arrays(one, {"head": np.arange(1, 7, dtype=np.float32)})
    assert (
        other_arrays(one, {})
        == ["head: the modules_to_save tensor differs"]
        == other_arrays({}, one)
    )
