"""Fixtures of the captures' tests: capture a function, and compare values and gradients with torch."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from torch.utils import _pytree as pytree
from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch

NAMES = ("a", "b", "c", "d")


class Function(torch.nn.Module):
    """A function of up to four tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a=None, b=None, c=None, d=None):
        return self.function(*(tensor for tensor in (a, b, c, d) if tensor is not None))


def assert_close(found: mx.array, expected: torch.Tensor, rtol: float, scale: float | None = None):
    """Compare shape, dtype and values; the tolerance is relative to the largest expected value."""
    found = to_torch(found)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    expected = expected.detach().double()
    finite = expected[torch.isfinite(expected)].abs()
    largest = scale or max(float(finite.max()) if finite.numel() else 0.0, 1e-3)
    torch.testing.assert_close(
        found.double(), expected, rtol=rtol, atol=rtol * largest, equal_nan=True
    )


def weighted_sum(leaves, weights):
    return sum((leaf * weight).sum() for leaf, weight in zip(leaves, weights, strict=True))


def floats(outputs, is_float):
    return [leaf for leaf in pytree.tree_leaves(outputs) if is_float(leaf)]


@pytest.fixture
def agree():
    """Return a check that a function of tensors gives torch's values and gradients in MLX."""

    def check(function, *tensors, rtol=2e-6, gradients=True):
        inputs = dict(zip(NAMES, tensors, strict=False))
        captured = capture(Function(function), inputs=inputs)
        arrays = {name: to_mlx(tensor) for name, tensor in inputs.items()}
        expected = pytree.tree_leaves(function(*tensors))
        found = pytree.tree_leaves(captured(**arrays))
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol)
        differentiable = [t for t in tensors if t.dtype.is_floating_point]
        if gradients and differentiable and any(e.dtype.is_floating_point for e in expected):
            compare_gradients(function, tensors, captured, arrays, rtol)

    return check


def compare_gradients(function, tensors, captured, arrays, rtol):
    leaves = [t.clone().requires_grad_(t.dtype.is_floating_point) for t in tensors]
    outputs = floats(function(*leaves), lambda t: t.dtype.is_floating_point)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
    weights = [weight.to(output.dtype) for weight, output in zip(weights, outputs, strict=True)]
    total = weighted_sum(outputs, weights)
    if not total.requires_grad:
        return
    total.backward()
    names = [n for n, leaf in zip(NAMES, leaves, strict=False) if leaf.grad is not None]
    their = dict(zip(NAMES, leaves, strict=False))

    def loss(chosen):
        values = floats(
            captured(**{**arrays, **chosen}), lambda a: mx.issubdtype(a.dtype, mx.floating)
        )
        return weighted_sum(values, [to_mlx(weight) for weight in weights])

    found = mx.grad(loss)({name: arrays[name] for name in names})
    for name in names:
        assert_close(found[name], their[name].grad, 4 * rtol)


@pytest.fixture
def assert_same():
    """Return a comparison of an array with a tensor, relative to the tensor's largest value."""
    return assert_close


@pytest.fixture
def gradients_of():
    """Return a function: (captured, loss of its output, inputs) -> loss, gradients by name."""

    def compute(captured, loss, **inputs):
        from mlx import nn

        value, tree = nn.value_and_grad(captured, lambda: loss(captured(**inputs)))()
        return value, dict(tree_flatten(tree))

    return compute


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    mx.random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - transformers' initialisation
