"""Handlers that users register, and programs that they exported themselves."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

import weighbridge
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.operations import registry
from weighbridge.errors import BadInputError, UnsupportedError


@pytest.fixture(scope="module")
def scaled():
    """Define an operation of a user's library; return its name."""

    @torch.library.custom_op("weighbridge_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    scaled.register_fake(lambda x, factor=2.0: torch.empty_like(x))
    return "weighbridge_tests::scaled"


@pytest.fixture(autouse=True)
def _table(monkeypatch):
    monkeypatch.setattr(registry, "_OPERATIONS", dict(registry.handlers()))


class Scaling(nn.Module):
    def forward(self, x):
        return torch.ops.weighbridge_tests.scaled(x, 3.0)


def test_a_handler_of_a_users_operation_runs_and_is_differentiated(scaled):
    example = (torch.ones(3),)
    with pytest.raises(UnsupportedError, match=r"weighbridge_tests\.scaled\.default: 1"):
        weighbridge.capture(Scaling(), inputs=example)
    weighbridge.register_op(scaled, lambda x, factor=2.0: x * factor)
    captured = weighbridge.capture(Scaling(), inputs=example)
    assert captured(mx.array([1.0, 2, 3])).tolist() == [3, 6, 9]
    assert mx.grad(lambda x: captured(x).sum())(mx.ones(3)).tolist() == [3, 3, 3]


def test_a_handler_must_fit_an_operation_that_there_is(scaled):
    with pytest.raises(BadInputError, match=r"torch has no operation nowhere\.op\.default"):
        weighbridge.register_op("nowhere::op", lambda x: x)
    with pytest.raises(BadInputError, match=r"has no argument y: its schema is .*float factor"):
        weighbridge.register_op(scaled, lambda x, y: x)


class Blocked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, states):
        with torch.no_grad():
            y = self.inner(x)
        return self.outer(y.relu_()) + states["h"]


def test_an_exported_program_runs_in_mlx_and_stays_as_it_is(gradients_of, assert_same):
    module = Blocked()
    x, h = torch.randn(3, 4), torch.randn(4)
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        module, (x,), {"states": {"h": h}}, dynamic_shapes={"x": {0: rows}, "states": {"h": None}}
    )
    before = str(program.graph)
    captured = weighbridge.from_exported(program)
    assert str(program.graph) == before
    x = torch.randn(5, 4)
    assert_same(captured(to_mlx(x), states={"h": to_mlx(h)}), module(x, {"h": h}), 2e-6)
    module(x, {"h": h}).square().sum().backward()
    _, found = gradients_of(
        captured, lambda out: (out * out).sum(), x=to_mlx(x), states={"h": to_mlx(h)}
    )
    assert_same(found["outer.weight"], module.outer.weight.grad, 1e-5)
    assert not np.array(found["inner.weight"]).any()


def test_an_exported_program_may_have_an_input_that_is_called_as_a_builtin_is(assert_same):
    module, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    captured = weighbridge.from_exported(torch.export.export(module, (x,)))
    assert_same(captured(input=to_mlx(x)), module(x), 2e-6)
