"""Norms that a model writes out become one operation, and what only looks like one does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def centred(x):
    return x - x.mean(-1, keepdim=True)


LAYER = {
    "squares": lambda x: centred(x) / torch.sqrt(centred(x).pow(2).mean(-1, keepdim=True) + 1e-5),
    "variance": lambda x: centred(x) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5),
    "reciprocal": lambda x: (1 / (centred(x).square().mean(-1, True) + 1e-5).sqrt()) * centred(x),
    "correction": lambda x: centred(x) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt(),
    "power": lambda x: centred(x) / ((centred(x) ** 2).mean(dim=-1, keepdim=True) + 1e-5) ** 0.5,
}
ROOT = {
    "quotient": lambda x: x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    "reciprocal": lambda x: x * torch.reciprocal((x * x).mean(-1, keepdim=True).add(1e-5).sqrt()),
    "power": lambda x: x * (x**2).mean(-1, keepdim=True).add(1e-5).pow(-0.5),
}
OTHERS = {
    "estimated variance": lambda x: centred(x) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
    "deviation": lambda x: centred(x) / (x.std(-1, keepdim=True) + 1e-5),
    "another axis": lambda x: (x - x.mean(0, True)) / (x.var(0, False, True) + 1e-5).sqrt(),
    "another mean": lambda x: (x - x.mean(-1, True)) / ((x * x).mean(-1, True) + 1e-5).sqrt(),
    "shifted": lambda x: (x + 1) / ((x * x).mean(-1, True) + 1e-5).sqrt(),
}


class Written(nn.Module):
    """A norm between two layers, with a weight and a bias."""

    def __init__(self, norm, bias=True):
        super().__init__()
        self.norm, self.first, self.last = norm, nn.Linear(6, 6), nn.Linear(6, 3)
        self.weight = nn.Parameter(torch.randn(6))
        self.bias = nn.Parameter(torch.randn(6)) if bias else None

    def forward(self, x):
        y = self.weight * self.norm(self.first(x))
        return {"x": self.last(y if self.bias is None else y + self.bias)}


X = {"x": torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("form", LAYER)
def test_layer_norms_written_out_are_one_operation_with_weight_and_bias(form, proven, steps):
    names = steps(proven(Written(LAYER[form]), X, dynamic={"x": {0: "batch"}}))
    assert names == ["linear.default", "layer_norm.default", "linear.default"]


@pytest.mark.parametrize("form", ROOT)
def test_norms_of_root_mean_squares_are_one_operation_with_their_weight(form, proven, steps):
    names = steps(proven(Written(ROOT[form], bias=False), X))
    assert names == ["linear.default", "rms_norm.default", "linear.default"]


@pytest.mark.parametrize("form", OTHERS)
def test_what_only_looks_like_a_norm_stays(form, proven, steps):
    names = steps(proven(Written(OTHERS[form]), X))
    assert not {"layer_norm.default", "rms_norm.default"} & set(names)


def test_a_norm_in_float32_of_a_narrow_value_is_one_operation(steps):
    from weighbridge.converters.captures import capture

    module = Written(lambda x: LAYER["squares"](x.float()).to(x.dtype)).bfloat16()
    captured = capture(module, inputs={"x": X["x"].bfloat16()})
    assert steps(captured) == ["linear.default", "layer_norm.default", "linear.default"]
