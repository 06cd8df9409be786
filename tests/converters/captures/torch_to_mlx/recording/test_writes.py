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


def beside_a_view(y):
    row = y[0]
    with torch.no_grad():
        y.mul_(3)
    return y + row


def of_a_part(y):
    with torch.no_grad():
        y.chunk(2)[0].mul_(3)


def of_a_part_outside(y):
    part = y.chunk(2)[0]
    with torch.no_grad():
        part.mul_(3)


def returned(y):
    with torch.no_grad():
        y[1].mul_(2)
        return y.clamp_(min=0.1)


def returned_as_a_view(y):
    with torch.no_grad():
        return y.clamp_(min=0.1)[:2]


def twice(y):
    clamped(y)
    y.mul_(2)
    row_set(y)
    return y * 3


def written_out(y):
    with torch.no_grad():
        torch.mul(y, 3, out=y)
    return y * 2


def infinite(y):
    with torch.no_grad():
        y.div_(0).clamp_(-4, 4)


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
        changed = self.change(y)
        y = y if changed is None else changed
        with torch.no_grad():
            self.calls.add_(1)
            shown = torch.zeros(3)
            shown[1] = 2
        return (y**2).sum() + (shown * y).sum()


@pytest.mark.parametrize(
    "change",
    [through_data, through_a_detached_view, beside_a_view, of_a_part_outside, returned_as_a_view],
)
def test_a_change_in_place_that_shows_in_two_tensors_is_refused_with_its_line(change):
    with pytest.raises(
        UnsupportedError, match=r"in place inside torch.no_grad.*test_writes.py:\d+"
    ):
        capture(Changed(change), inputs={"x": X})


@pytest.mark.parametrize(
    "change", [clamped, row_set, view_scaled, of_a_part, returned, twice, written_out, infinite]
)
def test_gradients_pass_by_what_is_changed_in_place_without_them(change, assert_same):
    agrees(change, assert_same)


@pytest.mark.parametrize("change", [nothing, copied, widened, detached_for_good])
def test_changes_of_copies_buffers_and_new_tensors_are_recorded(change, assert_same):
    agrees(change, assert_same)


def agrees(change, assert_same):
    module = Changed(change)
    captured = capture(module, inputs={"x": X})
    value, gradients = mlx_nn.value_and_grad(captured, lambda x: captured(x=x))(mx.array(X.numpy()))
    expected = module(X)
    expected.backward()
    assert_same(value, expected, 1e-6)
    assert_same(gradients["weight"], module.weight.grad, 1e-5)
