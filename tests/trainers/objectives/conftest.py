"""One way of looking at an objective in both frameworks."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest
import torch

from weighbridge.converters.captures import capture
from weighbridge.trainers.objectives.base import make_objective
from weighbridge.trainers.objectives.chosen import taking


class Side(NamedTuple):
    """A loss and the gradients of what it was computed from."""

    loss: float
    gradients: dict[str, np.ndarray]


class Sides(NamedTuple):
    """The same in torch, in torch with float64, and in MLX."""

    torch: Side
    double: Side
    mlx: Side


def in_torch(module, inputs, dtype=torch.float32):
    module = copy.deepcopy(module).to(dtype)
    fed = {name: torch.from_numpy(array) for name, array in inputs.items()}
    fed = {name: it.to(dtype) if it.is_floating_point() else it for name, it in fed.items()}
    loss = module(**fed)
    loss.backward()
    named = module.named_parameters()
    return Side(loss.item(), {name: it.grad.numpy() for name, it in named if it.grad is not None})


def in_mlx(module, inputs, example, dynamic):
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    captured = capture(module, inputs=example, dynamic=dynamic)
    fed = {name: mx.array(array) for name, array in inputs.items()}
    loss, gradients = nn.value_and_grad(captured, captured)(**fed)
    return Side(loss.item(), {name: np.array(it) for name, it in tree_flatten(gradients)})


@pytest.fixture
def both():
    """Return a function that computes an objective of a model on a batch in all three."""

    def compute(name, model, inputs, example=None, **options):
        objective = taking(make_objective(name, options), inputs)
        module = objective.make_loss(model)
        return Sides(
            in_torch(module, inputs),
            in_torch(module, inputs, torch.float64),
            in_mlx(module, inputs, example or inputs, objective.dynamic),
        )

    return compute


@pytest.fixture
def agree():
    """Return a function that holds MLX and torch against float64, in loss and gradients."""

    def check(sides, tolerance=1e-5):
        scale = max(np.abs(it).max() for it in sides.double.gradients.values())
        for side in (sides.torch, sides.mlx):
            assert side.loss == pytest.approx(sides.double.loss, rel=tolerance, abs=tolerance)
            for name, gradient in sides.double.gradients.items():
                found = side.gradients.get(name, np.zeros_like(gradient))
                assert np.abs(found - gradient).max() <= tolerance * scale, name

    return check


@pytest.fixture
def texts():
    """Return a function that makes ids, masks and labels of texts of several lengths."""

    def make(rows=4, width=9, seed=0, vocabulary=100):
        generator = np.random.default_rng(seed)
        ids = generator.integers(5, vocabulary, (rows, width))
        lengths = generator.integers(3, width + 1, (rows, 1))
        mask = (np.arange(width) < lengths).astype(np.int64)
        labels = np.where(mask * generator.integers(0, 4, ids.shape) > 0, ids, -100)
        return {"ids": ids * mask, "mask": mask, "labels": labels}

    return make
