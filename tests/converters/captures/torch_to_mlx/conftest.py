"""Fixtures of the captures' tests: capture a function, and compare values and gradients with torch."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from torch.utils import _pytree as pytree

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch


class Functions(torch.nn.Module):
    """Functions by name, each of its own inputs, as one module: recording costs half a second."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases

    def forward(self, **inputs):
        return {
            name: function(*(inputs[key] for key in keys(case, likes)))
            for case, (name, (function, *likes)) in enumerate(self.cases.items())
        }


def keys(case, likes):
    """Return the names of the inputs of a case."""
    return [f"input_{case}_{i}" for i in range(len(likes))]


def tensor(like):
    """Return a tensor as it is, or random normal values of a shape."""
    return like if isinstance(like, torch.Tensor) else torch.randn(like)


def assert_close(found: mx.array, expected: torch.Tensor, rtol: float):
    """Compare shape, dtype and values; the tolerance is relative to the largest expected value."""
    found = to_torch(found)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    expected = expected.detach().double()
    finite = expected[torch.isfinite(expected)].abs()
    largest = max(float(finite.max()) if finite.numel() else 0.0, 1e-3)
    torch.testing.assert_close(
        found.double(), expected, rtol=rtol, atol=rtol * largest, equal_nan=True
    )


@pytest.fixture
def agree():
    """Return a check that functions give torch's values and gradients in MLX.

    A case is a function and its tensors, given as they are or as the shape of normal ones. ``anew``: on
    other normal ones than those that were recorded.
    """

    def drawn(cases):
        return {
            key: tensor(like)
            for case, (_, *likes) in enumerate(cases.values())
            for key, like in zip(keys(case, likes), likes, strict=True)
        }

    def check(cases, rtol=2e-6, gradients=True, anew=False):
        inputs = drawn(cases)
        captured = capture(Functions(cases), inputs=inputs)
        inputs = drawn(cases) if anew else inputs
        arrays = {key: to_mlx(value) for key, value in inputs.items()}
        found = captured(**arrays)
        failures = []
        for case, (name, (function, *likes)) in enumerate(cases.items()):
            own = {key: inputs[key] for key in keys(case, likes)}
            try:
                compare_values(found[name], function(*own.values()), rtol)
                if gradients:
                    run = partial(run_case, captured, arrays, name)
                    compare_gradients(run, function, own, 4 * rtol)
            except AssertionError as failure:
                failures.append(f"{name}: {failure}")
        assert not failures, "\n".join(failures)

    return check


@pytest.fixture
def drawn():
    """Return a function: (function, tensor) -> what the function draws in MLX, as numpy."""

    def draw(function, like):
        captured = capture(Functions({"draw": (function, like)}), inputs={"input_0_0": like})
        return np.array(captured(input_0_0=to_mlx(like))["draw"])

    return draw


def run_case(captured, arrays, name, chosen):
    return pytree.tree_leaves(captured(**{**arrays, **chosen})[name])


def compare_values(found, expected, rtol):
    for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        assert_close(ours, theirs, rtol)


def compare_gradients(run, function, tensors, rtol):
    leaves = {
        key: t.clone().requires_grad_() for key, t in tensors.items() if t.dtype.is_floating_point
    }
    outputs = pytree.tree_leaves(function(*(tensors | leaves).values()))
    weights = {
        i: torch.randn(o.shape).to(o.dtype) for i, o in enumerate(outputs) if o.requires_grad
    }
    if not weights:
        return
    expected = torch.autograd.grad(
        [outputs[i] for i in weights], list(leaves.values()), weights.values(), allow_unused=True
    )

    def loss(chosen):
        values = run(chosen)
        return sum((values[i] * to_mlx(weight)).sum() for i, weight in weights.items())

    found = mx.grad(loss)({key: to_mlx(t) for key, t in leaves.items()})
    for key, gradient in zip(leaves, expected, strict=True):
        if gradient is not None:
            assert_close(found[key], gradient, rtol)


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
