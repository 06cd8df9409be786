"""A check that a pass changes nothing: with it, without any, and in torch, forward and gradient."""

import mlx.core as mx
import pytest
import torch
from torch.utils import _pytree as pytree

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.converters.captures.torch_to_mlx.passes.table import PASSES


def outputs_and_gradients(module, inputs):
    outputs = [leaf for leaf in pytree.tree_leaves(dict(module(**inputs))) if leaf is not None]
    wanted = {name: p for name, p in module.named_parameters() if p.requires_grad}
    total = sum(out.double().square().mean() for out in outputs)
    gradients = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    return outputs, dict(zip(wanted, gradients, strict=True))


def in_mlx(captured, inputs):
    from mlx import nn
    from mlx.utils import tree_flatten

    arrays = {name: to_mlx(value) for name, value in inputs.items() if hasattr(value, "shape")}

    def loss():
        leaves = pytree.tree_leaves(captured(**arrays))
        return sum(mx.mean(leaf.astype(mx.float32) ** 2) for leaf in leaves)

    outputs = [to_torch(leaf) for leaf in pytree.tree_leaves(captured(**arrays))]
    gradients = dict(tree_flatten(nn.value_and_grad(captured, loss)()[1]))
    return outputs, {name: to_torch(gradient) for name, gradient in gradients.items()}


def far(found, expected):
    """Return the largest difference, relative to the largest value."""
    difference = (found.double() - expected.detach().double()).abs().max()
    return float(difference / expected.detach().double().abs().max().clamp(min=1e-6))


@pytest.fixture
def proven():
    """Return a check of passes on a module; it gives the captured module back.

    The module runs on INPUTS in torch, without passes, and with those named (all by default).
    """

    def check(module, inputs, passes=PASSES, rtol=3e-5, without=True, **options):
        expected, wanted = outputs_and_gradients(module, inputs)
        top = max(float(g.abs().max()) for g in wanted.values() if g is not None) if wanted else 1
        for chosen in ((), passes) if without else (passes,):
            captured = capture(module, inputs=inputs, passes=chosen, **options)
            found, gradients = in_mlx(captured, inputs)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.dtype == theirs.dtype
                assert far(ours, theirs) < rtol, (chosen, far(ours, theirs))
            for name, gradient in gradients.items():
                if wanted[name] is not None:
                    error = float((gradient.double() - wanted[name].double()).abs().max()) / top
                    assert error < rtol, (chosen, name, error)
        return captured

    return check


@pytest.fixture
def steps():
    """Return a function: (captured) -> the names of its operations, as they are run."""

    def names(captured):
        return [
            step.label.split()[0].removeprefix("aten.") for step in captured.recording.graph.steps
        ]

    return names
