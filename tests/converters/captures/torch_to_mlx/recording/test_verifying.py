"""Each step is compared with what torch recorded, before anything is returned."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.operations import registry
from weighbridge.errors import UnsupportedError


@pytest.fixture
def handler(monkeypatch):
    """Return a function that puts a handler in the place of that of the sine."""
    registry.handlers()

    def put(function):
        operation = registry.Operation(function, "none")
        monkeypatch.setitem(registry._OPERATIONS, "aten.sin.default", operation)

    return put


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))

    def forward(self, x):
        return self.inner(x).sin() * 2


def waves():
    return capture(Waves(), inputs={"x": torch.ones(2, 3)}, dynamic={"x": {0: "rows"}})


def test_a_handler_that_gives_another_shape_is_refused_with_its_place(handler):
    handler(lambda self: mx.sin(self)[:1])
    with pytest.raises(UnsupportedError, match=r"aten\.sin\.default in the module itself gives"):
        waves()


def test_a_handler_that_raises_is_refused_with_its_error(handler):
    handler(lambda self: self.reshape(7, 7))
    with pytest.raises(UnsupportedError, match=r"sin\.default .*does not run in MLX.*reshape"):
        waves()


def test_nothing_is_computed_and_no_random_number_is_drawn(handler):
    seen = []
    handler(lambda self: seen.append(self) or mx.sin(self))
    mx.random.seed(5)
    mx.random.normal((2,))
    before = mx.random.state[0].tolist()
    waves()
    assert len(seen) == 1
    assert mx.random.state[0].tolist() == before
