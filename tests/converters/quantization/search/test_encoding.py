"""Searched codes: never a larger error than MLX's own, and refused where no code is worth a value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weighbridge.converters.quantization import Scheme, quantize, search
from weighbridge.converters.quantization.blocks import Blocks
from weighbridge.converters.quantization.search import encoding
from weighbridge.errors import UnsupportedError

from ..conftest import AFFINE, DTYPES, FLOATS, to_numpy, weights

ROUNDING = 1e-5  # what float32 makes of squared errors and of values half-way between two codes


def errors(parts, scheme, values):
    """Return the squared error of each group, in float64."""
    rest = Blocks(parts, scheme).values() - values
    return (rest**2).reshape(-1, scheme.group_size).sum(1)


def assert_never_worse(values, scheme, dtype, **more):
    ours = errors(search.encode(values, scheme, dtype, **more), scheme, values)
    theirs = errors(quantize(values, scheme, dtype), scheme, values)
    sizes = np.abs(values).reshape(ours.size, -1).max(1).astype(np.float64)
    slack = scheme.group_size * (2.0**-22 * sizes) ** 2  # the float32 nearest to a value itself
    assert (ours <= theirs * (1 + ROUNDING) + slack).all()
    return ours.sum() / theirs.sum() if theirs.any() else 1.0


ODD = {
    "zeros": np.zeros(128),
    "one constant": np.full(128, 0.7321),
    "constants of two groups": np.repeat([3.3, -0.001], 64),
    "one outlier": np.append(np.linspace(-1, 1, 127), 300),
    "two values": np.tile([0.1, -7], 64),
    "far from zero": 1000 + np.linspace(0, 0.01, 128),
    "a narrow group below zero": -1 - np.linspace(0, 1e-6, 128),
    "denormal": np.linspace(-1e-40, 1e-40, 128),
    "tiny": np.linspace(-1e-22, 1e-22, 128),
    "of all sizes": np.logspace(-30, 3, 128),
}


@pytest.mark.parametrize("scheme", [*AFFINE, *FLOATS], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ordinary_weights_err_less_than_by_mlx_and_no_group_errs_more(scheme, dtype):
    values = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32) * 0.1
    most = {"mxfp4": 0.97, "mxfp8": 1.001, "nvfp4": 0.9}.get(scheme.mode)
    most = most or (0.91 if scheme.bits < 5 else 0.94)
    assert assert_never_worse(values, scheme, dtype) ** 0.5 < most


@pytest.mark.parametrize("scheme", [*AFFINE, *FLOATS], ids=str)
@pytest.mark.parametrize("name", ODD)
def test_odd_groups_err_no_more_than_by_mlx(name, scheme):
    for dtype in DTYPES:
        assert_never_worse(ODD[name].astype(np.float32)[None], scheme, dtype)


numbers = st.floats(-3e4, 3e4, width=32, allow_subnormal=True) | st.sampled_from([0.0, 1.0, -1e-5])


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (2, 128), elements=numbers), st.sampled_from([*AFFINE, *FLOATS]))
@example(np.zeros((2, 128), np.float32), Scheme(4, 64))
def test_no_group_of_any_values_errs_more_than_by_mlx(values, scheme):
    assert_never_worse(values, scheme, "bfloat16")
    assert_never_worse(values, scheme, "float16")


def test_codes_are_the_nearest_by_the_scales_as_stored():
    values, scheme = to_numpy(weights((8, 256))), Scheme(8, 64)
    blocks = Blocks(search.encode(values, scheme, "bfloat16"), scheme)
    scales = np.repeat(blocks.parts["scales"].astype(np.float64), 64, -1)
    inside = (blocks.codes() > 0) & (blocks.codes() < 255)
    off = np.abs(blocks.values() - values) / np.abs(scales)
    assert off[inside].max() < 0.5 + 1e-3


@pytest.mark.parametrize("scheme", [Scheme(4, 64), Scheme(4, 32, "mxfp4")], ids=str)
def test_rows_experts_and_threads_make_no_difference(scheme, monkeypatch):
    values = to_numpy(weights((3, 5, 256)))
    whole = search.encode(values, scheme, "bfloat16", threads=1)
    monkeypatch.setattr(encoding, "BLOCK", 640)
    pieces = search.encode(values, scheme, "bfloat16", threads=3)
    for part, array in whole.items():
        assert array.shape[:2] == (3, 5)
        np.testing.assert_array_equal(array, pieces[part])


def test_errors_of_important_columns_are_made_smaller():
    values, scheme = to_numpy(weights((64, 128))), Scheme(3, 64)
    importance = np.exp(np.random.default_rng(0).standard_normal(128) * 2).astype(np.float32)
    plain, better = (
        Blocks(search.encode(values, scheme, "float16", importance=given), scheme).values()
        for given in (None, importance)
    )
    weighted = [(((found - values) ** 2) * importance).sum() for found in (plain, better)]
    assert weighted[1] < 0.9 * weighted[0]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_no_code_is_worth_is_refused_with_its_place(value):
    values = np.ones((3, 128), np.float32)
    values[2, 70] = value
    with pytest.raises(UnsupportedError, match=rf"{value} at \[2, 70\]"):
        search.encode(values, Scheme(4, 64), "float16")


def test_weights_too_large_for_their_scales_are_refused_with_what_to_do():
    values = np.linspace(-1e7, 1e7, 64, dtype=np.float32)[None]
    with pytest.raises(UnsupportedError, match="beyond float16; store scales in bfloat16"):
        search.encode(values, Scheme(4, 64), "float16")
    assert_never_worse(values, Scheme(4, 64), "bfloat16")


def test_a_shape_that_cannot_be_quantized_is_refused():
    with pytest.raises(UnsupportedError, match="multiple of the group"):
        search.encode(np.ones((2, 100), np.float32), Scheme(4, 64), "float16")
