"""Faults that hand-written ports have are named in words that say what to change."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

from weighbridge.parity.check.live import compare_modules

WIDTH, HEADS, SIZE = 16, 2, 8
DRAW = np.random.default_rng(0).normal
INPUTS = {"x": DRAW(size=(2, 12, WIDTH)).astype(np.float32)}


def gain(module):
    """Return MODULE with weights under which every part of it counts."""
    torch.manual_seed(0)
    for value in module.parameters():
        size = 1.5 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.3
        value.data.copy_(float(value.ndim == 1) + size * torch.randn_like(value))
    return module.eval()


class TorchSide(nn.Module):
    """Causal attention with norms of heads, a GELU, and a group norm over an image."""

    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({it: nn.Linear(WIDTH, WIDTH) for it in "qkvo"})
        self.attn["norm"] = nn.RMSNorm(SIZE, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.groups = nn.GroupNorm(4, WIDTH)

    def forward(self, x):
        heads = [self.attn[it](x).unflatten(-1, (HEADS, SIZE)) for it in "qkv"]
        q, k, v = (it.transpose(1, 2) for it in [*map(self.attn["norm"], heads[:2]), heads[2]])
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["o"](mixed.transpose(1, 2).flatten(2))
        x = x + self.mlp(x)
        return self.groups(x.unflatten(1, (3, 4)).permute(0, 3, 1, 2))


class MlxSide(layers.Module):
    """The same with a fault."""

    def __init__(self, source, fault):
        super().__init__()
        self.q, self.k, self.v, self.o, self.up, self.down = (
            layers.Linear(WIDTH, WIDTH) for _ in range(6)
        )
        self.norm = layers.RMSNorm(SIZE, eps=1e-3 if fault == "epsilon" else 1e-6)
        self.gn = layers.GroupNorm(4, WIDTH, pytorch_compatible=fault != "groups")
        self.fault = fault
        names = {"attn.": "", "mlp.0": "up", "mlp.2": "down", "groups": "gn"}
        weights = {}
        for theirs, value in source.state_dict().items():
            name = theirs
            for one, other in names.items():
                name = name.replace(one, other)
            weights[name] = mx.array(value.numpy())
        self.load_weights(list(weights.items()))

    def __call__(self, x):
        heads = [it(x).reshape(*x.shape[:2], HEADS, SIZE) for it in (self.q, self.k, self.v)]
        q, k, v = (it.swapaxes(1, 2) for it in [*map(self.norm, heads[:2]), heads[2]])
        mask = mx.tril(mx.ones((12, 12), mx.bool_), k=int(self.fault == "mask"))
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=SIZE**-0.5, mask=mask)
        x = x + self.o(mixed.swapaxes(1, 2).reshape(x.shape))
        act = layers.gelu_approx if self.fault == "activation" else layers.gelu
        x = x + self.down(act(self.up(x)))
        return self.gn(x.reshape(2, 3, 4, WIDTH)).transpose(0, 3, 1, 2)


FAULTS = {
    "epsilon": ("attn.norm", "with eps 0.001, the reference has 1e-06"),
    "activation": ("mlp", "gelu (tanh) of mlp.0, the reference's is gelu"),
    "mask": ("attn", "see what follows"),
    "groups": ("groups", "pytorch_compatible=True"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_port_is_named_by_place_and_kind(fault):
    source = gain(TorchSide())
    verdict = compare_modules(source, MlxSide(source, fault), INPUTS)
    site, words = FAULTS[fault]
    assert verdict.status == "DIFFERS"
    [found] = {(it.site.partition("@")[0], it.kind) for it in verdict.faults}
    assert found == (site, fault)
    assert all(words in it.evidence for it in verdict.faults)


def test_the_right_port_passes():
    source = gain(TorchSide())
    assert compare_modules(source, MlxSide(source, ""), INPUTS).passed


class Normed(nn.Module):
    """Two blocks that mix tokens and features, each behind a norm of its own."""

    def __init__(self, kind):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"before": kind(WIDTH), "mix": nn.Linear(WIDTH, WIDTH)}
                | {"after": kind(WIDTH), "up": nn.Linear(WIDTH, 24), "down": nn.Linear(24, WIDTH)}
            )
            for _ in range(2)
        )

    def forward(self, x):
        for it in self.blocks:
            x = x + it["mix"](it["before"](x)).tanh().cumsum(1)
            x = x + it["down"](it["up"](it["after"](x)).relu())
        return x


class NormedPort(layers.Module):
    """The same, whose last block takes for one of its norms the one that WRONG names."""

    def __init__(self, source, kind, wrong):
        super().__init__()
        parts = {"mix": (WIDTH, WIDTH), "up": (WIDTH, 24), "down": (24, WIDTH)}
        self.blocks = [
            {name: layers.Linear(*sizes) for name, sizes in parts.items()}
            | {name: kind(WIDTH) for name in ("before", "after")}
            for _ in range(2)
        ]
        self.wrong = wrong
        self.load_weights([(it, mx.array(w.numpy())) for it, w in source.state_dict().items()])

    def __call__(self, x):
        for number, it in enumerate(self.blocks):
            norms = [it["before"], it["after"]]
            if number and self.wrong == "exchanged":
                norms.reverse()
            elif number and self.wrong:
                at, _, name = self.wrong.partition(".")
                norms[1] = self.blocks[int(at)][name]
            x = x + mx.cumsum(mx.tanh(it["mix"](norms[0](x))), axis=1)
            x = x + it["down"](layers.relu(it["up"](norms[1](x))))
        return x


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("wrong", ["1.before", "0.after", "exchanged", ""])
def test_a_norm_in_the_place_of_another_is_named(kind, wrong):
    torch_kind, mlx_kind = getattr(nn, kind), getattr(layers, kind)
    if kind == "RMSNorm":
        torch_kind = lambda width: nn.RMSNorm(width, eps=1e-5)  # noqa: E731
    source = gain(Normed(torch_kind))
    verdict = compare_modules(source, NormedPort(source, mlx_kind, wrong), INPUTS)
    if not wrong:
        assert verdict.passed
        return
    said = [(it.site, it.kind, it.evidence) for it in verdict.faults]
    named = "what reaches blocks.1.after" if wrong == "exchanged" else f"blocks.{wrong} norms"
    assert said[0][:2] == ("blocks.1", "order"), said
    assert named in said[0][2], said
