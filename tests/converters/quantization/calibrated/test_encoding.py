"""Codes for given inputs: the output errs less than with codes for the weight alone."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.quantization import Scheme, calibrated, quantize, search
from weighbridge.converters.quantization.blocks import Blocks
from weighbridge.converters.quantization.calibrated import encoding, refining
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import FLOATS, to_numpy, weights

SCHEMES = [Scheme(2, 32), Scheme(3, 64), Scheme(4, 64), Scheme(8, 128), *FLOATS]


def inputs(columns, count=600, seed=0):
    """Return inputs that go together, a few of them large, as those of a language model are."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((columns, columns)) / columns**0.5
    sizes = np.exp(random.standard_normal(columns))
    return (
        random.standard_normal((count, columns)) @ (mixing + np.eye(columns) / 4) * sizes
    ).astype("f4")


def output_error(parts, scheme, values, given):
    return np.linalg.norm(given @ (Blocks(parts, scheme).values() - values).T)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_outputs_for_other_inputs_of_the_kind_err_less_than_by_any_rounding(scheme, dtype):
    values, given = to_numpy(weights((40, 256))), inputs(256, 1400)
    calibration, test = given[:1000], given[1000:]
    ours = calibrated.encode(values, calibration.T @ calibration, scheme, dtype)
    found = output_error(ours, scheme, values, test)
    assert found < 0.9 * output_error(search.encode(values, scheme, dtype), scheme, values, test)
    assert found < 0.8 * output_error(quantize(values, scheme, dtype), scheme, values, test)


@pytest.mark.parametrize("scheme", [Scheme(4, 64), Scheme(4, 16, "nvfp4")], ids=str)
def test_parts_have_the_dtypes_and_shapes_of_mlx_and_rows_do_not_matter(scheme, monkeypatch):
    values, given = to_numpy(weights((40, 128))), inputs(128)
    whole = calibrated.encode(values, given.T @ given, scheme, "float16", threads=1)
    monkeypatch.setattr(encoding, "ROWS", 7)
    pieces = calibrated.encode(values, given.T @ given, scheme, "float16", threads=2)
    for part, array in quantize(values, scheme, "float16").items():
        assert (whole[part].dtype, whole[part].shape) == (array.dtype, array.shape)
    differing = Blocks(whole, scheme).codes() != Blocks(pieces, scheme).codes()
    assert differing.mean() < 0.01  # sums in another order, by the shape of what BLAS multiplies


@pytest.mark.parametrize("zero", ["integer", "symmetric"])
def test_one_code_is_worth_zero_where_that_is_asked_for(zero):
    values, given, scheme = to_numpy(weights((40, 128))), inputs(128), Scheme(4, 64)
    parts = calibrated.encode(values, given.T @ given, scheme, "float32", zero=zero)
    zeros = -parts["biases"] / parts["scales"]
    np.testing.assert_allclose(zeros, np.rint(zeros), atol=1e-4)
    plain = search.encode(values, scheme, "float32", zero=zero)
    assert output_error(parts, scheme, values, given) < 0.9 * output_error(
        plain, scheme, values, given
    )


@pytest.mark.parametrize("scheme", [Scheme(3, 32), Scheme(4, 32, "mxfp4")], ids=str)
def test_sweeps_make_the_error_smaller(scheme, monkeypatch):
    values, given = to_numpy(weights((40, 128))), inputs(128)
    found = []
    for sweeps in (0, 1, 4):
        monkeypatch.setattr(refining, "SWEEPS", sweeps)
        parts = calibrated.encode(values, given.T @ given, scheme, "float16")
        found.append(output_error(parts, scheme, values, given))
    assert found[2] <= found[1] < found[0]


def test_fewer_inputs_than_columns_and_columns_without_any_are_enough():
    values, given, scheme = to_numpy(weights((10, 128))), inputs(128, 20), Scheme(4, 64)
    given[:, 5:9] = 0
    parts = calibrated.encode(values, given.T @ given, scheme, "float16")
    assert np.isfinite(Blocks(parts, scheme).values()).all()
    plain = search.encode(values, scheme, "float16")
    assert output_error(parts, scheme, values, given) < output_error(plain, scheme, values, given)


@pytest.mark.parametrize("products", [np.zeros((64, 64)), np.full((64, 64), np.nan)])
def test_inputs_that_say_nothing_are_refused(products):
    with pytest.raises(BadInputError, match="check the text"):
        calibrated.encode(np.ones((2, 64), "f4"), products, Scheme(4, 64), "float16")


def test_inputs_of_another_weight_are_refused_with_both_shapes():
    with pytest.raises(UnsupportedError, match=r"\[32, 32\] are not those of a weight .*\[2, 64\]"):
        calibrated.encode(np.ones((2, 64), "f4"), np.eye(32), Scheme(4, 64), "float16")


def test_values_that_no_scale_holds_are_refused():
    values = np.linspace(-1e7, 1e7, 128, dtype="f4").reshape(2, 64)
    with pytest.raises(UnsupportedError, match="store scales in bfloat16"):
        calibrated.encode(values, np.eye(64), Scheme(4, 64), "float16")
