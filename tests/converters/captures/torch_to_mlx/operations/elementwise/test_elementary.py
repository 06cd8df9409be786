"""The CPU's own exp, erf and their kin against float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from weighbridge.converters.captures.torch_to_mlx.operations.elementwise import elementary

RANGES = {
    "exp": (-80, 85),
    "erf": (-6, 6),
    "tanh": (-12, 12),
    "sigmoid": (-80, 30),
    "softplus": (-30, 30),
}
TORCH = {
    "exp": torch.exp,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
}
EDGES = mx.array([-float("inf"), -1e4, -89.0, -88.2, 0.0, 89.0, 1e4, float("inf"), float("nan")])


@pytest.mark.parametrize("name", RANGES)
def test_a_function_is_good_to_a_few_last_bits(name):
    x = mx.linspace(*RANGES[name], 100_003)
    exact = TORCH[name](torch.from_numpy(np.array(x)).double()).numpy()
    found = np.array(getattr(elementary, name)(x)).astype(np.float64)
    assert np.max(np.abs(found - exact) / np.abs(exact).clip(1e-30)) < 6e-7


@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "sigmoid"])
def test_a_gradient_is_the_derivative(name):
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    exact = torch.from_numpy(x).double().requires_grad_()
    TORCH[name](exact).sum().backward()
    found = mx.grad(lambda v: getattr(elementary, name)(v).sum())(mx.array(x))
    np.testing.assert_allclose(np.array(found), exact.grad.numpy(), rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "sigmoid"])
def test_infinities_and_nan_come_out_as_in_torch(name):
    found = np.array(getattr(elementary, name)(EDGES))
    exact = TORCH[name](torch.from_numpy(np.array(EDGES))).numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-37, equal_nan=True)


def test_softmax_gives_exactly_zero_to_what_is_masked():
    weights = np.array(elementary.softmax(mx.array([[0.0, -float("inf"), 1.0]])))
    assert weights[0, 1] == 0
    assert weights.sum() == pytest.approx(1)


@pytest.mark.compiled
def test_functions_and_gradients_survive_compilation():
    x = mx.linspace(-3, 3, 64)

    def loss(v):
        return (elementary.erf(v) * elementary.tanh(v) + elementary.softmax(v) * v).sum()

    plain, compiled = mx.grad(loss)(x), mx.compile(mx.grad(loss))(x)
    np.testing.assert_allclose(np.array(plain), np.array(compiled), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float64])
def test_other_dtypes_keep_their_dtype(dtype):
    x = mx.array([0.5, 1.0]).astype(dtype)
    assert all(getattr(elementary, name)(x).dtype == dtype for name in RANGES)
