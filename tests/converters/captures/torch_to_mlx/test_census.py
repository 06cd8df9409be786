"""What cannot run is named before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture, census
from weighbridge.errors import UnsupportedError


class Odd(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x) + torch.cumulative_trapezoid(x).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Odd(), Odd()
        self.table = nn.Embedding(4, 3, scale_grad_by_freq=True)
        self.bags = nn.EmbeddingBag(4, 3, scale_grad_by_freq=True)

    def forward(self, x):
        rows = torch.tensor([0, 1, 2])
        return self.first(self.second(x)) @ self.table(rows) + self.bags(rows[None])


class Ragged(nn.Module):
    def forward(self, x):
        return x[x > 0]


def test_unsupported_operations_come_with_counts_and_places():
    with pytest.raises(UnsupportedError) as caught:
        capture(Net(), inputs={"x": torch.ones(2, 3)})
    message = str(caught.value)
    assert "operations cannot run in MLX" in message
    assert "bessel_j0.default: 2 in second, first" in message
    assert "aten.embedding.default(scale_grad_by_freq=True): 1 in table" in message
    assert "aten.embedding_bag.padding_idx(scale_grad_by_freq=True): 1 in bags" in message


def test_a_shape_that_depends_on_values_is_refused():
    with pytest.raises(UnsupportedError, match="its shape depends on values"):
        capture(Ragged(), inputs={"x": torch.ones(3)})


def test_a_census_counts_what_is_supported_too():
    found = census(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), inputs={"input": torch.ones(2, 3)}
    )
    assert found.operations["aten.linear.default"] == 2
    assert not found.unsupported
    found.check()


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_code_that_torch_cannot_record_is_refused_with_its_reason():
    with pytest.raises(UnsupportedError, match=r"torch\.export cannot record Branching"):
        capture(Branching(), inputs={"x": torch.ones(3)})


def test_the_only_target_is_mlx():
    with pytest.raises(UnsupportedError, match="'mlx'"):
        capture(nn.ReLU(), to="jax", inputs={"input": torch.ones(3)})
