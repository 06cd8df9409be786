"""Searched scales where one code is worth zero, as integer zero points of other formats ask for."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.quantization import Scheme, search
from weighbridge.converters.quantization.blocks import Blocks
from weighbridge.errors import UnsupportedError

from ..conftest import AFFINE, to_numpy, weights


def plain(values, scheme, zero):
    """Return what rounding to the plain grid from least to largest value makes of VALUES."""
    grouped, top = values.reshape(-1, scheme.group_size).astype(np.float64), 2**scheme.bits - 1
    low, high = np.minimum(grouped.min(1), 0), np.maximum(grouped.max(1), 0)
    if zero == "symmetric":
        high = np.maximum(-low, high)
        low = -high
    scales = ((high - low) / top)[:, None]
    zeros = np.rint(-low[:, None] / scales) if zero == "integer" else 2 ** (scheme.bits - 1)
    codes = np.clip(np.rint(grouped / scales + zeros), 0, top)
    return ((codes - zeros) * scales).reshape(values.shape)


@pytest.mark.parametrize("scheme", AFFINE, ids=str)
@pytest.mark.parametrize("zero", ["integer", "symmetric"])
def test_biases_are_whole_codes_and_errors_below_those_of_the_plain_grid(zero, scheme):
    values = to_numpy(weights((16, 256)))
    blocks = Blocks(search.encode(values, scheme, "float32", zero=zero), scheme)
    zeros = -blocks.parts["biases"] / blocks.parts["scales"]
    assert (blocks.parts["scales"] > 0).all()
    np.testing.assert_allclose(zeros, np.rint(zeros), atol=1e-4)
    assert 0 <= zeros.min() <= zeros.max() <= 2**scheme.bits - 1
    if zero == "symmetric":
        assert set(np.rint(zeros).flat) == {2 ** (scheme.bits - 1)}
    ours = ((blocks.values() - values) ** 2).sum()
    assert ours < 0.98 * ((plain(values, scheme, zero) - values) ** 2).sum()


@pytest.mark.parametrize("zero", ["integer", "symmetric"])
@pytest.mark.parametrize(("low", "high"), [(2, 3), (-3, -2), (0, 0), (0.5, 0.5), (-1e-40, 1e-40)])
def test_groups_on_one_side_of_zero_have_a_code_for_zero_all_the_same(low, high, zero):
    values, scheme = np.linspace(low, high, 64, dtype=np.float32)[None], Scheme(4, 64)
    blocks = Blocks(search.encode(values, scheme, "float16", zero=zero), scheme)
    zeros = -blocks.parts["biases"].astype(float) / np.maximum(blocks.parts["scales"], 1e-7)
    assert 0 <= zeros.min() <= zeros.max() <= 15.01
    assert np.abs(blocks.values() - values).max() <= max(abs(low), abs(high)) / 10 + 1e-7


@pytest.mark.parametrize(
    ("scheme", "zero"), [(Scheme(4, 32, "mxfp4"), "integer"), (Scheme(4, 64), "odd")]
)
def test_a_zero_that_a_scheme_cannot_have_is_refused(scheme, zero):
    with pytest.raises(UnsupportedError, match=f"has no {zero} zero"):
        search.encode(np.ones((1, 64), np.float32), scheme, "float16", zero=zero)
