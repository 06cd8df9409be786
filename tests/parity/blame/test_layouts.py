"""Faults of a port whose axes lie otherwise are named at their place, and nothing else is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

from weighbridge.parity.blame.layouts import orders_of
from weighbridge.parity.check.live import compare_modules

SIZE = 6
SQUARE = {"x": np.random.default_rng(0).normal(size=(2, SIZE, SIZE, SIZE)).astype(np.float32)}
OBLONG = {"x": np.random.default_rng(1).normal(size=(2, SIZE, 4, 7)).astype(np.float32)}


class Residual(nn.Module):
    """A convolution and a batch norm inside a wrapper, then a 1 x 1 convolution as attention has it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(SIZE, SIZE, 3, padding=1), nn.BatchNorm2d(SIZE))
        self.act = nn.Sequential(nn.GELU())
        self.mix = nn.Conv2d(SIZE, SIZE, 1)

    def forward(self, x):
        return x + self.mix(self.act(x + self.inner(x)))


class TorchSide(nn.Module):
    """Two of them."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(2))
        torch.manual_seed(0)
        for name, value in self.state_dict().items():
            if value.is_floating_point():
                gain = 1.5 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.3
                start = float(value.ndim == 1 and name.endswith(("weight", "var")))
                value.copy_(start + gain * torch.randn_like(value).clamp(-2, 2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Block(layers.Module):
    """The same, channels last, other names, and a fault if asked for."""

    def __init__(self, fault):
        super().__init__()
        self.conv = layers.Conv2d(SIZE, SIZE, 3, padding=1)
        self.norm = layers.BatchNorm(SIZE, eps=1e-2 if fault == "epsilon" else 1e-5)
        self.out, self.fault = layers.Linear(SIZE, SIZE), fault

    def __call__(self, x):
        self.norm.train(self.fault == "training")
        h = layers.gelu(x + self.norm(self.conv(x)))
        rows = self.out(h.reshape(len(h), -1, SIZE)).reshape(x.shape)
        return rows if self.fault == "lost residual" else x + rows


class MlxSide(layers.Module):
    """Two of them, with the weights of SOURCE; the second has FAULT."""

    def __init__(self, source, fault=""):
        super().__init__()
        self.stack = [Block(""), Block(fault)]
        names = {"inner.0": "conv", "inner.1": "norm", "mix": "out", "blocks": "stack"}
        weights = {}
        for theirs, value in source.state_dict().items():
            name = theirs
            for one, other in names.items():
                name = name.replace(one, other)
            array = value.numpy().transpose(0, 2, 3, 1) if value.ndim == 4 else value.numpy()
            if "num_batches" not in name:
                weights[name] = array.reshape(SIZE, SIZE) if array.size == SIZE**2 else array
        if fault == "transposed kernel":
            weights["stack.1.conv.weight"] = weights["stack.1.conv.weight"].swapaxes(1, 2)
        if fault == "statistics":
            weights["stack.1.norm.running_mean"] = np.zeros(SIZE, np.float32)
        self.load_weights([(name, mx.array(it)) for name, it in weights.items()])

    def __call__(self, x):
        x = x.transpose(0, 2, 3, 1)
        for block in self.stack:
            x = block(x)
        return x.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("inputs", [OBLONG, SQUARE], ids=["oblong", "square"])
@pytest.mark.parametrize(
    ("fault", "site", "kind"),
    [
        ("transposed kernel", "blocks.1.inner.0", "unknown"),
        ("lost residual", "blocks.1", "residual"),
        ("statistics", "blocks.1.inner.1", "zeroed"),
        ("epsilon", "blocks.1.inner.1", "batch norm"),
        ("training", "blocks.1.inner.1", "batch norm"),
    ],
)
def test_a_fault_of_a_port_with_channels_last_is_named_at_its_place(inputs, fault, site, kind):
    source = TorchSide().eval()
    assert compare_modules(source, MlxSide(source), inputs).passed
    verdict = compare_modules(source, MlxSide(source, fault), inputs)
    assert verdict.status == "DIFFERS"
    assert [(it.site, it.kind) for it in verdict.faults] == [(site, kind)]


def test_where_neither_sizes_nor_values_tell_an_order_most_sites_do():
    draw = np.random.default_rng(0).normal
    sizes = {"a": (1, 2, 3, 4), "b": (1, 3, 3, 3), "c": (1, 3, 3, 3), "d": (1, 2, 3, 5)}
    wanted = {site: draw(size=shape) for site, shape in sizes.items()}
    found = {site: wanted[site].transpose(0, 2, 3, 1) for site in "ad"}
    found |= {"b": draw(size=sizes["b"]), "c": wanted["c"] + 0.01}
    orders = orders_of(wanted, found)
    assert orders == {**dict.fromkeys("abd", (0, 2, 3, 1)), "c": (0, 1, 2, 3)}
