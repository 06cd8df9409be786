"""Errors are relative, per token, and never forgive what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.parity.check.distances import describe_non_finite, distance, select_tokens

WIDE = np.array([[[3.0, 4.0], [0.6, 0.8]]])
NON_FINITE = {
    "NaN": (np.nan, 1.0, "1 NaN"),
    "NaN where the reference is NaN": (np.nan, np.nan, "1 NaN"),
    "unexpected infinity": (np.inf, 1.0, "1 unexpected infinity"),
    "missing infinity": (1.0, np.inf, "1 missing infinity"),
    "other sign": (-np.inf, np.inf, "1 infinity of the wrong sign"),
    "same infinity": (np.inf, np.inf, ""),
    "finite": (1.0, 2.0, ""),
}


def test_the_worst_token_is_measured_on_its_own_scale():
    found = WIDE + np.array([[[0.0, 0.0], [0.1, 0.0]]])
    assert distance(found, WIDE).worst == pytest.approx(0.1)
    assert distance(found, WIDE).whole == pytest.approx(0.1 / np.sqrt(26))


def test_masked_positions_do_not_count():
    found = WIDE + np.array([[[0.0, 0.0], [9.0, np.nan]]])
    mask = np.array([[1, 0]])
    assert distance(found, WIDE, mask) == (0.0, 0.0)
    assert describe_non_finite(found, WIDE, mask) == ""


def test_a_mask_of_another_shape_leaves_every_position_in():
    pooled = np.ones((2, 3))
    assert len(select_tokens(pooled, np.ones((2, 5)))) == 2


@pytest.mark.parametrize(("found", "wanted", "said"), NON_FINITE.values(), ids=NON_FINITE)
def test_only_equal_infinities_are_forgiven(found, wanted, said):
    assert describe_non_finite(np.array([1.0, found]), np.array([1.0, wanted])) == said


def test_equal_infinities_leave_the_rest_measured():
    found, wanted = np.array([[np.inf, 1.5]]), np.array([[np.inf, 1.0]])
    assert distance(found, wanted).whole == pytest.approx(0.5)


def test_a_zero_token_is_measured_on_the_scale_of_the_others():
    wanted = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert np.isfinite(distance(wanted + 1e-9, wanted).worst)


def test_anything_against_all_zeros_is_infinitely_far():
    assert distance(np.ones((2, 2)), np.zeros((2, 2))).whole == np.inf
    assert distance(np.zeros((2, 2)), np.zeros((2, 2))) == (0.0, 0.0)


@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_the_scale_of_the_outputs_does_not_matter(scale, seed):
    random = np.random.default_rng(seed)
    wanted, noise = random.normal(size=(2, 4, 3)), 1e-3 * random.normal(size=(2, 4, 3))
    expected = distance(wanted + noise, wanted)
    assert distance(scale * (wanted + noise), scale * wanted) == pytest.approx(expected, rel=1e-6)
