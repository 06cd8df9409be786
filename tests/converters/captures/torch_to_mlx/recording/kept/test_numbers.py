"""Whole numbers that modules keep in tensors are recorded as numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.errors import UnsupportedError


class Padded(nn.Module):
    """A convolution that pads what its last step lacks, computed in tensors, as codecs do."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 4, 3)
        self.stride = nn.Buffer(torch.tensor(3), persistent=False)
        self.kernel = nn.Buffer(torch.tensor(4), persistent=False)
        self.before = self.kernel - self.stride

    def forward(self, x):
        length = x.shape[-1]
        steps = torch.ceil((length - self.kernel + self.before) / self.stride)
        after = steps.to(torch.int64) * self.stride + self.kernel - self.before - length
        return self.conv(functional.pad(x, (self.before, after)))


class Counting(nn.Module):
    """A module that counts its runs beside its state."""

    def __init__(self):
        super().__init__()
        self.runs = nn.Buffer(torch.tensor(1), persistent=False)

    def forward(self, x):
        self.runs.add_(1)
        return x * self.runs


def test_padding_by_numbers_that_a_module_keeps(assert_same):
    module, x = Padded(), torch.randn(2, 2, 20)
    captured = capture(module, inputs={"x": x})
    assert_same(captured(x=to_mlx(x)), module(x), rtol=2e-6)
    assert type(module) is Padded


def test_numbers_that_a_module_writes_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="updates 'runs' in place"):
        capture(Counting(), inputs={"x": torch.randn(2, 3)})
