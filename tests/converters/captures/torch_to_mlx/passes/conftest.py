"""A check that a pass changes nothing: with it, without any, and in torch, forward and gradient."""

import warnings
from contextlib import contextmanager
from copy import deepcopy

import mlx.core as mx
import pytest
import torch
from torch.utils import _pytree as pytree

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx import capturing
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
def recorded_once(monkeypatch):
    """Return a block in which modules are recorded once, and every capture has a copy of it."""
    plain, programs = capturing.record, {}

    @contextmanager
    def block():
        def record(module, inputs, dynamic):
            key = id(module), module.training, str(inputs), str(dynamic)
            program = programs.get(key) or plain(module, inputs, dynamic)
            programs[key] = program
            with warnings.catch_warnings(action="ignore"):  # torch uses what it deprecates
                copied = deepcopy(program.graph_module), deepcopy(program.graph_signature)
                return program._update(*copied)

        with monkeypatch.context() as patched:
            patched.setattr(capturing, "record", record)
            yield

    return block


@pytest.fixture
def proven(recorded_once):
    """Return a check of passes on a module; it gives the captured module back.

    The module runs on INPUTS in torch, without passes, and with those named (all by default).
    """

    def check(module, inputs, passes=PASSES, rtol=3e-5, without=True, **options):
        expected, wanted = outputs_and_gradients(module, inputs)
        top = max(float(g.abs().max()) for g in wanted.values() if g is not None) if wanted else 1
        every = ((), passes) if without else (passes,)
        with recorded_once():
            made = [capture(module, inputs=inputs, passes=it, **options) for it in every]
        for chosen, captured in zip(every, made, strict=True):
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
        graph = captured._wiring.graph(captured.recording)
        return [step.operation.removeprefix("aten.") for step in graph.steps]

    return names
