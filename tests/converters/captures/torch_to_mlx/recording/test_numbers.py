"""Numbers that modules keep: whole ones in tensors are recorded as numbers, those that calls change refused."""

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


class Cooled(nn.Module):
    """Divides by a temperature that falls with every call."""

    def __init__(self, tensor: bool = False):
        super().__init__()
        self.layer, self.calls, self.tensor = nn.Linear(3, 2), 0, tensor

    def forward(self, x):
        self.calls += 1
        heat = max(0.1, 1 - self.calls / 10)
        return self.layer(x) / (torch.tensor(heat) if self.tensor else heat)


class Listed(nn.Module):
    def __init__(self, read: bool):
        super().__init__()
        self.means, self.read = [], read

    def forward(self, x):
        self.means.append(x.mean())
        return x * len(self.means) if self.read else x * 2


EXAMPLE = {"x": torch.randn(4, 3)}


@pytest.mark.parametrize("module", [Cooled(), Cooled(tensor=True)])
def test_a_number_that_a_call_reads_and_changes_is_refused_by_name(module):
    with pytest.raises(UnsupportedError, match=r"\(0\.calls\)"):
        capture(nn.Sequential(module), inputs={"input": EXAMPLE["x"]})
    assert module.calls == 0


def test_a_list_whose_length_is_read_is_refused():
    with pytest.raises(UnsupportedError, match=r"\(means\)"):
        capture(Listed(read=True), inputs=EXAMPLE)


class Inside(nn.Module):
    """Counts its calls in a list or a dictionary."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def forward(self, x):
        self.counts[0] += 1
        return x * self.counts[0]


@pytest.mark.parametrize("counts", [[0], {0: 0.5}])
def test_a_number_inside_a_list_or_a_dictionary_is_refused_too(counts):
    with pytest.raises(UnsupportedError, match=r"\(counts\)"):
        capture(Inside(counts), inputs=EXAMPLE)


def test_a_list_that_is_only_written_is_left_as_it_was(assert_same):
    module = Listed(read=False)
    captured = capture(module, inputs=EXAMPLE)
    assert module.means == []
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), module(**EXAMPLE), rtol=1e-6)


class Settling(nn.Module):
    """Takes the way of short inputs at the first of them, as BigBird does."""

    def __init__(self):
        super().__init__()
        self.act, self.way = nn.Tanh(), "long"

    def forward(self, x):
        if self.way == "long":
            self.act, self.way = nn.Sigmoid(), "short"
        return self.act(x)


def test_a_way_that_the_first_call_chooses_is_recorded(assert_same):
    captured = capture(Settling(), inputs=EXAMPLE)
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), Settling()(**EXAMPLE), rtol=1e-6)
