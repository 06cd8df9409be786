"""A leak is told from noise, warm-up and single jumps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.memory import leak_trend

STEPS = np.arange(200)
LEVEL = 5e8


def noise(seed: int, size: float = 5e6) -> np.ndarray:
    """What updates need in passing: never negative, unlike from reading to reading."""
    return np.abs(np.random.default_rng(seed).normal(size=len(STEPS))) * size


@given(seed=st.integers(0, 2**32), rate=st.floats(2e5, 1e7))
def test_steady_growth_below_noise_is_a_leak_whose_rate_is_told(seed, rate):
    trend = leak_trend(STEPS, LEVEL + rate * STEPS + noise(seed))
    assert trend.verdict == "leak"
    assert trend.low <= trend.slope <= trend.high
    assert trend.slope == pytest.approx(rate, rel=0.3)


@given(seed=st.integers(0, 2**32), unit=st.sampled_from([1, 1000]))
def test_the_rate_is_per_unit_of_the_places(seed, unit):
    sizes = LEVEL + 1e6 * STEPS + noise(seed)
    assert leak_trend(STEPS * unit, sizes).slope == pytest.approx(
        leak_trend(STEPS, sizes).slope / unit
    )


STEADY = {
    "noise": lambda g: noise(g.integers(2**32), 5e7),
    "a warm-up": lambda g: 2e8 * (1 - np.exp(-STEPS / 20)) + noise(g.integers(2**32)),
    "one jump": lambda g: np.where(g.integers(200) < STEPS, 5e7, 0) + noise(g.integers(2**32)),
    "a cache that fills and is cleared": lambda g: 1e6 * (STEPS * g.integers(1, 30) % 97),
    "memory that is given back": lambda g: -1e6 * STEPS,
    "growth too small to matter": lambda g: 1e3 * STEPS,
}


@pytest.mark.parametrize("make", STEADY.values(), ids=STEADY)
@given(seed=st.integers(0, 2**32))
def test_what_does_not_grow_for_good_is_steady(make, seed):
    assert leak_trend(STEPS, LEVEL + make(np.random.default_rng(seed))).verdict == "steady"


def test_outliers_do_not_hide_a_leak():
    sizes = LEVEL + 1e6 * STEPS
    sizes[::7] += 1e9
    sizes[150] = 0
    assert leak_trend(STEPS, sizes).verdict == "leak"


def test_few_readings_are_not_judged():
    assert leak_trend(range(30), 1e6 * np.arange(30)).verdict == "too short"
