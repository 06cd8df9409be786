"""What no recorded value tells is found in the source itself: one thing in it is made another, and it is run."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

from weighbridge.parity.check.live import compare_modules
from weighbridge.tests.parity.blame.test_fused import gain

WIDTH, INNER, EXPERTS, CHOSEN, LENGTH = 24, 16, 4, 2, 12
TEXTS = {"ids": np.random.default_rng(0).integers(0, 31, (3, LENGTH))}


class Experts(nn.Module):
    """Experts whose weights are stacks, with a gate and what it multiplies in one."""

    def __init__(self):
        super().__init__()
        self.gate_up = nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, WIDTH))
        self.down = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER))
        self.act = nn.SiLU()

    def forward(self, x, chosen, shares):
        total = torch.zeros_like(x)
        for number in range(EXPERTS):
            gate, up = (x @ self.gate_up[number].T).chunk(2, -1)
            share = (shares * (chosen == number)).sum(-1, keepdim=True)
            total = total + share * ((self.act(gate) * up) @ self.down[number].T)
        return total


class TorchMixture(nn.Module):
    """A mixture of experts between two layers; how sharply it chooses is a number of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.router, self.out = (
            nn.Embedding(31, WIDTH),
            nn.Linear(WIDTH, EXPERTS),
            nn.Linear(WIDTH, 5),
        )
        self.experts = Experts()
        self.mixture = nn.ModuleDict({"router": self.router, "experts": self.experts})

    def forward(self, ids):
        x = self.words(ids).flatten(0, 1)
        shares, chosen = torch.softmax(self.router(x), -1).topk(CHOSEN, -1)
        mixed = self.experts(x, chosen, shares)
        return self.out(x + mixed).unflatten(0, ids.shape)


class MlxMixture(layers.Module):
    """The same in MLX, its experts a part of it, with a fault."""

    def __init__(self, source, fault):
        super().__init__()
        self.words, self.router, self.out = (
            layers.Embedding(31, WIDTH),
            layers.Linear(WIDTH, EXPERTS),
            layers.Linear(WIDTH, 5),
        )
        self.experts = Stack()
        self.fault = fault
        state = {name: mx.array(it) for name, it in source.state_dict().items()}
        self.load_weights([it for it in state.items() if not it[0].startswith("mixture")])

    def __call__(self, ids):
        x = self.words(ids)
        shares = mx.softmax(self.router(x), axis=-1)
        chosen = mx.argsort(-shares, axis=-1)[..., :CHOSEN]
        shares = mx.take_along_axis(shares, chosen, axis=-1)
        if self.fault == "expert":
            chosen = (chosen + 1) % EXPERTS
        gate_up, down = self.experts.gate_up[chosen], self.experts.down[chosen]
        gate, up = mx.split(gate_up @ x[..., None, :, None], 2, axis=-2)
        if self.fault == "gate":
            gate, up = up, gate
        inner = (layers.gelu if self.fault == "activation" else layers.silu)(gate) * up
        return self.out(x + (shares[..., None] * (down @ inner)[..., 0]).sum(-2))


class Stack(layers.Module):
    """The stacks, which nothing calls."""

    def __init__(self):
        super().__init__()
        self.gate_up = mx.zeros((EXPERTS, 2 * INNER, WIDTH))
        self.down = mx.zeros((EXPERTS, WIDTH, INNER))


FOUND = {
    "expert": ("experts", "each expert were taken for the one after it"),
    "gate": ("experts", "halves of gate_up changed places"),
    "activation": ("experts.act", "gelu stood in the place of silu"),
}


def test_the_right_port_passes():
    source = gain(TorchMixture())
    assert compare_modules(source, MlxMixture(source, ""), TEXTS).passed


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_of_experts_that_are_computed_together_is_named(fault):
    source = gain(TorchMixture())
    [found] = compare_modules(source, MlxMixture(source, fault), TEXTS).faults
    site, words = FOUND[fault]
    assert (found.site, found.kind) == (site, fault)
    assert words in found.evidence


class Attention(nn.Module):
    """Attention from left to right with a bias for each pair and a head of its own size, so that nothing gives it again."""

    def __init__(self):
        super().__init__()
        self.parts, self.out = nn.Linear(WIDTH, 3 * 20), nn.Linear(20, WIDTH)
        self.distances = nn.Parameter(torch.zeros(LENGTH, LENGTH))
        self.sharpness, self.later = 0.3, torch.ones(LENGTH, LENGTH).triu(1).bool()

    def forward(self, x):
        q, k, v = self.parts(x).chunk(3, -1)
        scores = (self.sharpness * q @ k.mT + self.distances).masked_fill(self.later, -1e9)
        return self.out(torch.softmax(scores, -1) @ v)


class Text(nn.Module):
    """Words and attention."""

    def __init__(self):
        super().__init__()
        self.words, self.attn = nn.Embedding(31, WIDTH), Attention()

    def forward(self, ids):
        return self.words(ids) + self.attn(self.words(ids))


def altered(name, value):
    """Return a text's source, and the same with NAME of its attention another."""
    source, changed = gain(Text()), gain(Text())
    setattr(changed.attn, name, value)
    return source, changed


def test_a_scale_that_only_the_source_knows_is_named_with_its_size_not_by_where_it_errs():
    [found] = compare_modules(*altered("sharpness", 0.45), TEXTS).faults
    assert (found.site, found.kind) == ("attn", "attention")
    assert "sharpness, which is 0.3, were 1.5 times that" in found.evidence


class Sharper(Attention):
    """The same with scores that are sharper by a number that has no name."""

    def forward(self, x):
        q, k, v = self.parts(x).chunk(3, -1)
        scores = (self.sharpness * q @ k.mT + self.distances).masked_fill(self.later, -1e9)
        return self.out(torch.softmax(scores * 1.25, -1) @ v)


def test_a_scale_of_scores_is_named_where_the_source_has_no_name_for_it():
    source, changed = gain(Text()), gain(Text())
    changed.attn.__class__ = Sharper
    [found] = compare_modules(source, changed, TEXTS).faults
    assert (found.site, found.kind) == ("attn", "attention")
    assert "what the softmax gets were 1.25 times that" in found.evidence


def test_the_source_is_as_before_after_a_search():
    source = gain(TorchMixture())
    before = {path: [*vars(it), *it._modules] for path, it in source.named_modules()}
    compare_modules(source, MlxMixture(source, "expert"), TEXTS)
    assert {path: [*vars(it), *it._modules] for path, it in source.named_modules()} == before
