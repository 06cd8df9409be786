"""A merge is the float64 sum rounded once, and what is lost by rounding is measured."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import merge
from weighbridge.converters.adapters import merge as function
from weighbridge.converters.adapters.rounding import round_once
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float64", "float32", "float16", "bfloat16")
}


def pair(shape=(9, 6), rank=3, size=1.0, seed=0):
    generator = np.random.default_rng(seed)
    base = generator.normal(size=shape)
    a = generator.normal(size=(rank, shape[1])).astype(np.float32)
    b = (size * generator.normal(size=(shape[0], rank))).astype(np.float32)
    return base, LowRank(a, b, 0.7)


@pytest.mark.parametrize("name", DTYPES)
def test_the_sum_is_rounded_once(name):
    base, update = pair()
    base = base.astype(DTYPES[name])
    merged, survival = merge(base, update)
    expected = round_once(base.astype(np.float64) + update.delta(), DTYPES[name])
    assert merged.dtype == DTYPES[name]
    assert (merged == expected).all()
    assert survival.size == survival.changed == base.size


@given(st.integers(1, 7), st.integers(1, 200))
def test_blocks_of_rows_do_not_change_the_result(rows, block):
    base, update = pair((rows, 5), 2, seed=rows)
    module = __import__("sys").modules[function.__module__]
    whole = merge(base.astype(np.float32), update)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        parts = merge(base.astype(np.float32), update)
    assert (parts[0] == whole[0]).all()
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-9, atol=1e-12)


def test_the_inputs_are_left_as_they_are():
    base, update = pair()
    copies = base.copy(), update.a.copy(), update.b.copy()
    merge(base, update)
    assert all((x == y).all() for x, y in zip((base, update.a, update.b), copies, strict=True))


def test_the_figures_are_those_of_their_definition():
    base, update = pair(size=0.01)
    base = base.astype(ml_dtypes.bfloat16)
    merged, survival = merge(base, update)
    intended = update.delta().ravel()
    realised = (merged.astype(np.float64) - base.astype(np.float64)).ravel()
    norms = np.linalg.norm(intended) * np.linalg.norm(realised)
    assert survival.cosine == pytest.approx(intended @ realised / norms, rel=1e-12)
    error = np.linalg.norm(realised - intended) / np.linalg.norm(intended)
    assert survival.relative_error == pytest.approx(error, rel=1e-12)
    assert survival.changed == np.count_nonzero(merged != base)
    assert 0.1 < survival.relative_error < 1.1  # at this size bfloat16 loses much


def test_less_survives_in_narrower_dtypes_and_of_smaller_updates():
    def survival(name, size):
        base, update = pair((64, 48), size=size)
        return merge(base.astype(DTYPES[name]), update)[1]

    by_dtype = [survival(name, 0.02).relative_error for name in ("float32", "float16", "bfloat16")]
    by_size = [survival("bfloat16", size).cosine for size in (1.0, 0.01, 0.0002)]
    assert by_dtype == sorted(by_dtype)
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[-1] < 0.6


def test_an_update_too_small_for_the_dtype_survives_in_nothing():
    base = np.ones((4, 3), ml_dtypes.bfloat16)
    merged, survival = merge(base, LowRank(np.ones((1, 3)), np.full((4, 1), 1e-6)))
    assert (merged == base).all()
    assert survival == (0.0, 1.0, 0, 12)


def test_an_update_of_nothing_survives_whole():
    base, update = pair()
    _, survival = merge(base.astype(np.float16), LowRank(update.a, 0 * update.b))
    assert survival == (1.0, 0.0, 0, 54)


def test_dora_gives_every_row_its_magnitude():
    base, update = pair()
    magnitude = np.arange(1.0, 10.0)
    merged, survival = merge(base, LowRank(update.a, update.b, update.scale, magnitude))
    np.testing.assert_allclose(np.linalg.norm(merged, axis=1), magnitude, rtol=1e-12)
    directions = (base + update.delta()) / merged
    assert (np.ptp(directions, axis=1) < 1e-9).all()
    assert survival.cosine == pytest.approx(1)


REFUSED = {
    "integers": (np.zeros((9, 6), np.uint32), UnsupportedError, "cannot merge into uint32"),
    "shape": (np.zeros((6, 9)), MismatchError, r"base has shape \[6, 9\], the update \[9, 6\]"),
    "overflow": (np.full((9, 6), 65504, np.float16), UnsupportedError, "do not fit float16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused(case):
    base, error, message = REFUSED[case]
    update = LowRank(np.ones((1, 6)), np.ones((9, 1)), 100.0)
    with pytest.raises(error, match=message):
        merge(base, update)


def test_a_row_of_zeros_has_no_direction_for_dora():
    update = LowRank(np.zeros((1, 2)), np.zeros((2, 1)), 1.0, np.ones(2))
    with pytest.raises(UnsupportedError, match="do not fit float64"):
        merge(np.zeros((2, 2)), update)


def test_a_base_of_transposed_memory_is_merged_as_it_reads():
    base, update = pair()
    turned = np.asfortranarray(base)
    assert (merge(turned, update)[0] == merge(base, update)[0]).all()
