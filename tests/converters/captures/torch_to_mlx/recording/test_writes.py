"""What is changed in place where gradients are off: refused, or recorded with PyTorch's gradient."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from mlx import nn as mlx_nn
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.errors import UnsupportedError

X = torch.linspace(-1, 2, 12).reshape(4, 3)


def clamped(y):
    with torch.no_grad():
        y.clamp_(min=0.1)


def row_set(y):
    with torch.no_grad():
        y[0] = 5.0


def view_scaled(y):
    with torch.no_grad():
        y.view(-1)[2:4].mul_(3)


def through_data(y):
    y.data.clamp_(min=0.1)


def through_a_detached_view(y):
    y.detach()[1].mul_(3)


def detached_for_good(y):
    y = (y * 2).detach()
    y.mul_(3)


def copied(y):
    with torch.no_grad():
        y.clone().clamp_(min=0.1)


def widened(y):
    with torch.no_grad():
        y.double().mul_(3)


def nothing(y):
    pass


class Changed(nn.Module):
    """Changes what depends on its weight, and counts in a buffer."""

    def __init__(self, change):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("calls", torch.zeros(3))
        self.change = change

    def forward(self, x):
        y = x * self.weight
        self.change(y)
        with torch.no_grad():
            self.calls.add_(1)
            shown = torch.zeros(3)
            shown[1] = 2
        return (y**2).sum() + (shown * y).sum()


@pytest.mark.parametrize(
    "change", [clamped, row_set, view_scaled, through_data, through_a_detached_view]
)
def test_a_change_in_place_that_hides_from_gradients_is_refused_with_its_line(change):
    with pytest.raises(
        UnsupportedError, match=r"in place inside torch.no_grad.*test_writes.py:\d+"
    ):
        capture(Changed(change), inputs={"x": X})


@pytest.mark.parametrize("change", [nothing, copied, widened, detached_for_good])
def test_changes_of_copies_buffers_and_new_tensors_are_recorded(change, assert_same):
    module = Changed(change)
    captured = capture(module, inputs={"x": X})
    gradients = mlx_nn.value_and_grad(captured, lambda x: captured(x=x))(mx.array(X.numpy()))[1]
    module(X).backward()
    assert_same(gradients["weight"], module.weight.grad, 1e-5)
