"""Faults of attention without rotary positions, its projections in one, and of what surrounds it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as layers
from torch import nn

from weighbridge.parity.check.live import compare_modules

WIDTH, HEADS, LENGTH, VALUES = 24, 3, 12, 5
DRAW = np.random.default_rng(0)
TEXTS = {
    "ids": DRAW.integers(0, 31, (4, LENGTH)),
    "mask": np.arange(LENGTH) < np.array([[LENGTH], [7], [LENGTH], [9]]),
}
IMAGES = {"image": DRAW.normal(size=(4, 3, 16, 16)).astype(np.float32)}


def gain(module):
    """Return MODULE with weights under which every part of it counts."""
    torch.manual_seed(0)
    for value in module.parameters():
        size = 1.5 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.3
        value.data.copy_(float(value.ndim == 1) + size * torch.randn_like(value))
    return module.eval()


class TorchText(nn.Module):
    """Embeddings and one attention, causal or with padding left out."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(31, WIDTH), nn.Embedding(16, WIDTH)
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH)}
        )

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        parts = self.attn["qkv"](x).chunk(3, -1)
        q, k, v = (it.unflatten(-1, (HEADS, -1)).transpose(1, 2) for it in parts)
        allowed = torch.ones(LENGTH, LENGTH).bool().tril() if self.causal else mask[:, None, None]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, allowed)
        return x + self.attn["out"](mixed.transpose(1, 2).flatten(2))


class MlxText(layers.Module):
    """The same with a fault."""

    def __init__(self, source, fault):
        super().__init__()
        self.words, self.places = layers.Embedding(31, WIDTH), layers.Embedding(16, WIDTH)
        self.qkv, self.out = layers.Linear(WIDTH, 3 * WIDTH), layers.Linear(WIDTH, WIDTH)
        self.fault, self.causal = fault, source.causal
        state = {it.removeprefix("attn."): mx.array(x) for it, x in source.state_dict().items()}
        self.load_weights(list(state.items()))

    def __call__(self, ids, mask):
        x = self.words(ids) + self.places(mx.arange(LENGTH) + int(self.fault == "position"))
        parts = mx.split(self.qkv(x), 3, axis=-1)
        if self.fault == "swapped projections":
            parts = [parts[1], parts[0], parts[2]]
        q, k, v = (it.reshape(4, LENGTH, HEADS, -1).swapaxes(1, 2) for it in parts)
        allowed = mx.tril(mx.ones((LENGTH, LENGTH), mx.bool_))
        allowed = allowed if self.causal else mask[:, None, None]
        size = WIDTH if self.fault == "attention" else WIDTH // HEADS
        mixed = mx.fast.scaled_dot_product_attention(
            q, k, v, scale=size**-0.5, mask=None if self.fault == "mask" else allowed
        )
        mixed = mixed if self.fault == "heads" else mixed.swapaxes(1, 2)
        return x + self.out(mixed.reshape(4, LENGTH, WIDTH))


PADDED = {
    "mask": "attention to padding too: the mask is dropped",
    "swapped projections": "queries and keys are exchanged (the first third of attn.qkv",
    "attention": "0.5774 times the reference's",
    "heads": "bring the sequence before the heads first",
}
CAUSAL = PADDED | {"mask": "attention to later tokens too: the causal mask is dropped"}
FAULTS = [(True, *it) for it in CAUSAL.items()] + [(False, *it) for it in PADDED.items()]


@pytest.mark.parametrize(("causal", "fault", "words"), FAULTS)
def test_a_fault_of_attention_whose_projections_are_one_is_named(causal, fault, words):
    source = gain(TorchText(causal))
    verdict = compare_modules(source, MlxText(source, fault), TEXTS)
    [found] = verdict.faults
    assert (found.site, found.kind) == ("attn", fault)
    assert words in found.evidence


def test_positions_that_begin_elsewhere_are_named():
    source = gain(TorchText(causal=True))
    [found] = compare_modules(source, MlxText(source, "position"), TEXTS).faults
    assert (found.site, found.kind) == ("places", "position")
    assert "what the reference has at +1 from there" in found.evidence


@pytest.mark.parametrize("causal", [True, False])
def test_the_right_port_passes(causal):
    source = gain(TorchText(causal))
    assert compare_modules(source, MlxText(source, ""), TEXTS).passed


class TorchImage(nn.Module):
    """A convolution whose channels are flattened into a layer; some of them are never active."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 4, 4), nn.Linear(8 * 16, VALUES)

    def forward(self, image):
        return self.out(torch.relu(self.conv(image)).flatten(1))


class MlxImage(layers.Module):
    """The same, flattened as MLX's channels lie, or with a square root that nobody asked for."""

    def __init__(self, source, fault):
        super().__init__()
        self.conv, self.out = layers.Conv2d(3, 8, 4, 4), layers.Linear(8 * 16, VALUES)
        state = {name: mx.array(it) for name, it in source.state_dict().items()}
        state["conv.weight"] = state["conv.weight"].transpose(0, 2, 3, 1)
        self.load_weights(list(state.items()))
        self.fault = fault

    def __call__(self, image):
        x = layers.relu(self.conv(image.transpose(0, 2, 3, 1)))
        x = x if self.fault == "flattened" else x.transpose(0, 3, 1, 2)
        return self.out(mx.sqrt(x).flatten(1) if self.fault == "root" else x.flatten(1))


WORDS = {"flattened": "8 rows of 16 lie as 16 rows of 8", "root": "what reaches out"}


@pytest.mark.parametrize("fault", WORDS)
def test_what_reaches_a_layer_otherwise_is_told(fault):
    source = gain(TorchImage())
    source.conv.bias.data[:2] = -9
    [found] = compare_modules(source, MlxImage(source, fault), IMAGES).faults
    assert found.kind == ("permuted" if fault == "flattened" else "unknown")
    assert WORDS[fault] in found.evidence
