"""Rounding from float64 gives the nearest value that there is, ties to even."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.quantization.rounding import is_multiple, round_once

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float16", "float32", "bfloat16", "float8_e5m2", "float8_e4m3fn")
}

# Zeros, subnormal numbers of each dtype, ordinary ones, some that are infinite when doubled, and no numbers.
NUMBERS = [0.0, -0.0, 1e-45, 6e-8, -3e-5, 7e-39, 0.37, -2.5, 300, 40000]
NUMBERS += [-65504, 2e38, -math.inf, math.nan]


def grid_of(dtype: np.dtype) -> np.ndarray:
    """Return every finite value of DTYPE that is not negative, sorted."""
    codes = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        values = codes.view(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values) & (values >= 0)])


GRIDS = {name: grid_of(dtype) for name, dtype in DTYPES.items() if name != "float32"}


def nearest(value: float, grid: np.ndarray) -> set[float]:
    """Return the value of GRID nearest to VALUE, both at a tie, by exact arithmetic."""
    place = int(np.searchsorted(grid, abs(value)))
    around = grid[max(0, place - 1) : place + 1]
    distances = [abs(Fraction(float(g)) - Fraction(abs(value))) for g in around]
    return {
        math.copysign(float(g), value)
        for g, d in zip(around, distances, strict=True)
        if d == min(distances)
    }


@pytest.mark.parametrize("name", GRIDS)
@given(st.data())
def test_the_result_is_the_nearest_value(name, data):
    grid = GRIDS[name]
    place = data.draw(st.integers(0, len(grid) - 2))
    low, high = grid[place], grid[place + 1]
    tie = (low + high) / 2
    value = data.draw(
        st.sampled_from([tie, np.nextafter(tie, 0), np.nextafter(tie, np.inf), low, -tie])
        | st.floats(float(low), float(high))
    )
    value = float(value)
    found = float(round_once(np.array([value]), DTYPES[name])[0])
    assert found in nearest(value, grid)
    if value == tie:
        code = round_once(np.array([value]), DTYPES[name]).view(f"u{DTYPES[name].itemsize}")[0]
        assert code % 2 == 0


@pytest.mark.parametrize("name", DTYPES)
@given(values=st.lists(st.floats(-200, 200, width=32), min_size=1))
def test_values_that_the_dtype_has_stay(name, values):
    exact = np.array(values, np.float32).astype(DTYPES[name])
    assert round_once(exact.astype(np.float64), DTYPES[name]).tobytes() == exact.tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_not_a_number_stays_so(name):
    found = round_once(np.array([np.nan, 0.0, -0.0]), DTYPES[name]).astype(np.float64)
    assert np.isnan(found[0])
    assert np.signbit(found).tolist()[1:] == [False, True]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_what_is_too_large_is_infinite(name):
    found = round_once(np.array([1e300, -1e300, np.inf]), DTYPES[name]).astype(np.float64)
    assert found.tolist() == [np.inf, -np.inf, np.inf]


@pytest.mark.parametrize("name", DTYPES)
@given(values=st.lists(st.floats(width=32), min_size=1))
def test_of_32_bits_the_result_is_that_of_the_same_numbers_in_64(name, values):
    narrow = np.array(values, np.float32)
    one, other = (round_once(it, DTYPES[name]) for it in (narrow, narrow.astype(np.float64)))
    np.testing.assert_array_equal(one.astype(np.float64), other.astype(np.float64))


@given(st.lists(st.floats(width=64), min_size=1, max_size=20))
def test_numbers_of_all_sizes_side_by_side_are_each_rounded_as_alone(values):
    together = round_once(np.array(values), DTYPES["bfloat16"])
    alone = np.concatenate([round_once(np.array([it]), DTYPES["bfloat16"]) for it in values])
    np.testing.assert_array_equal(together.astype(np.float64), alone.astype(np.float64))


def test_every_number_near_a_float16_is_rounded_as_numpy_does():
    grid = GRIDS["float16"].astype(np.float32)
    ties = (grid[:-1] + np.diff(grid) / 2).astype(np.float32)
    around = [np.nextafter(ties, np.float32(to)) for to in (-np.inf, np.inf)]
    numbers = np.concatenate([grid, ties, *around, np.float32([65519, 65520, 1e6, np.inf, 0])])
    for values in (numbers, -numbers):
        found = round_once(values, DTYPES["float16"])
        with np.errstate(over="ignore"):
            assert found.tobytes() == values.astype(np.float16).tobytes()


@pytest.mark.parametrize("other", [[], [1e-6], [6e-8], [65520], [np.nan], [-np.inf]])
def test_zeros_among_ordinary_numbers_keep_their_signs(other):
    ties = GRIDS["float16"][2000:2400].astype(np.float32) * np.float32(1 + 2.0**-11)
    values = np.concatenate([ties, -ties, np.float32([0.0, -0.0, *other])])
    with np.errstate(over="ignore"):
        assert round_once(values, DTYPES["float16"]).tobytes() == values.astype("f2").tobytes()


@pytest.mark.parametrize("value", [0.1, 0.0, 1e-7, 1e9])
def test_one_number_stays_without_axes(value):
    found = round_once(np.array(value, np.float32), DTYPES["float16"])
    with np.errstate(over="ignore"):
        assert (found.shape, found[()]) == ((), np.float16(np.float32(value)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("power", [1, 3, 7])
def test_products_are_told_from_bits_as_from_values(name, power):
    dtype = DTYPES[name]
    with np.errstate(all="ignore"):
        numbers = np.array(NUMBERS, dtype)
        products = numbers * dtype.type(-(2**power))
        exact = numbers.astype(np.float64) * -(2.0**power)
        true = (products.astype(np.float64) == exact) & (exact != 0)
    found = [
        is_multiple(product[None], number[None], power)
        for product, number in zip(products, numbers, strict=True)
    ]
    assert found == true.tolist()
    assert is_multiple(products[true], numbers[true], power)
    assert not is_multiple(-products[true], numbers[true], power)
    assert not is_multiple(numbers[true], numbers[true], power)
