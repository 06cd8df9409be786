"""Elementwise kernels, against coremltools' value inference and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.kernels.elementwise import BINARY, KERNELS, UNARY

RANDOM = np.random.default_rng(0)
SIGNED = RANDOM.standard_normal((3, 4)).astype(np.float32)
UNIT = np.tanh(SIGNED)
POSITIVE = np.abs(SIGNED) + np.float32(0.1)
LEFT = np.array([-7, -3, 0, 2, 5, 8], np.int32)
RIGHT = np.array([2, -2, 3, -5, 5, 3], np.int32)
CHANNELS = np.array([0.25, -1.5, 3.0], np.float32)
IMAGE = RANDOM.standard_normal((2, 3, 4, 2)).astype(np.float32)

DOMAIN = {
    "acos": UNIT,
    "asin": UNIT,
    "atanh": UNIT,
    "sqrt": POSITIVE,
    "logical_not": SIGNED > 0,
    "round": np.array([-2.5, -1.5, -0.5, 0.4, 0.5, 1.5, 2.5], np.float32),
    "sign": np.array([-2.0, 0.0, 3.0], np.float32),
}
# Without value inference in coremltools; torch is the oracle.
TORCH_ONLY = {"silu": torch.nn.SiLU(), "identity": torch.nn.Identity()}

PARAMETRIC = [
    ("clamped_relu", {"x": SIGNED * 3, "alpha": np.float32(0.2), "beta": np.float32(1.5)}),
    ("clip", {"x": SIGNED, "alpha": np.float32(-0.5), "beta": np.float32(0.25)}),
    ("elu", {"x": SIGNED, "alpha": np.float32(1.5)}),
    ("inverse", {"x": POSITIVE, "epsilon": np.float32(0.5)}),
    ("leaky_relu", {"x": SIGNED, "alpha": np.float32(0.1)}),
    ("linear_activation", {"x": SIGNED, "alpha": np.float32(2), "beta": np.float32(-1)}),
    ("log", {"x": POSITIVE, "epsilon": np.float32(0.5)}),
    ("prelu", {"x": IMAGE, "alpha": CHANNELS}),
    ("rsqrt", {"x": POSITIVE, "epsilon": np.float32(0.5)}),
    ("scaled_tanh", {"x": SIGNED, "alpha": np.float32(2), "beta": np.float32(0.5)}),
    ("sigmoid_hard", {"x": SIGNED * 3, "alpha": np.float32(0.3), "beta": np.float32(0.4)}),
    ("softplus_parametric", {"x": IMAGE, "alpha": CHANNELS, "beta": CHANNELS}),
    ("threshold", {"x": SIGNED, "alpha": np.float32(0.3)}),
    ("thresholded_relu", {"x": SIGNED, "alpha": np.float32(0.3)}),
    ("gelu", {"x": SIGNED, "mode": "EXACT"}),
    ("gelu", {"x": SIGNED, "mode": "TANH_APPROXIMATION"}),
    ("gelu", {"x": SIGNED, "mode": "SIGMOID_APPROXIMATION"}),
    ("select", {"cond": SIGNED > 0, "a": SIGNED, "b": -2 * SIGNED}),
    ("cast", {"x": np.array([-2.7, -0.5, 0.5, 2.7], np.float32), "dtype": "int32"}),
    ("cast", {"x": np.array([-2.0, 0.0, 0.5], np.float32), "dtype": "bool"}),
    ("cast", {"x": np.array([-2, 0, 7], np.int32), "dtype": "fp32"}),
]
LOGICAL = {"logical_and", "logical_or", "logical_xor"}
FLOAT_PAIRS = sorted(set(BINARY) - LOGICAL)
INT_PAIRS = sorted(set(BINARY) - LOGICAL - {"pow"})


@pytest.mark.parametrize("operation", sorted(set(UNARY) - set(TORCH_ONLY)))
def test_unary_kernels_equal_coremltools_value_inference(operation, agree):
    agree(operation, 3e-6, x=DOMAIN.get(operation, SIGNED))


@pytest.mark.parametrize("operation", sorted(TORCH_ONLY))
def test_unary_kernels_without_value_inference_equal_torch(operation, compute):
    expected = TORCH_ONLY[operation](torch.from_numpy(SIGNED)).numpy()
    np.testing.assert_array_equal(compute(operation, x=SIGNED)[0], expected)


@pytest.mark.parametrize("operation", FLOAT_PAIRS)
def test_binary_kernels_broadcast_floats_as_coremltools_does(operation, agree):
    agree(operation, 2e-6, x=POSITIVE, y=POSITIVE[1:2] * np.float32(0.7))


@pytest.mark.parametrize("operation", INT_PAIRS)
def test_binary_kernels_treat_integers_as_coremltools_does(operation, agree):
    agree(operation, x=LEFT, y=RIGHT)


@pytest.mark.parametrize("operation", sorted(LOGICAL))
def test_logical_kernels_equal_coremltools_value_inference(operation, agree):
    agree(operation, x=LEFT > 0, y=RIGHT > 0)


@pytest.mark.parametrize(("operation", "inputs"), PARAMETRIC)
def test_kernels_with_parameters_equal_coremltools_value_inference(operation, inputs, agree):
    agree(operation, 2e-6, **inputs)


def test_every_kernel_of_the_table_is_tested():
    assert set(KERNELS) == {*UNARY, *BINARY, *(operation for operation, _ in PARAMETRIC)}


@given(st.floats(-1e4, 1e4, width=32))
def test_cast_to_int_truncates_towards_zero(number):
    assert int(KERNELS["cast"](torch.tensor([number]), "int32")[0]) == int(number)


def test_softplus_has_no_linear_tail_and_does_not_overflow():
    x = torch.tensor([-30.0, 20.5, 200.0])
    exact = np.logaddexp(x.double().numpy(), 0)
    np.testing.assert_allclose(KERNELS["softplus"](x).numpy(), exact, rtol=1e-7)
