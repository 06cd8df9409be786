"""T5 in MLX by the names of mlx-examples, so that mlx-lm's own layers can be put into it.

No MLX library on the registry has T5; this is the version with one feed-forward matrix in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

Config = Mapping[str, Any]


class Attention(nn.Module):
    """Queries of one sequence on keys and values of another; T5 does not scale."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        wide, self.heads = config["num_heads"] * config["d_kv"], config["num_heads"]
        for name in ("query_proj", "key_proj", "value_proj"):
            setattr(self, name, nn.Linear(config["d_model"], wide, bias=False))
        self.out_proj = nn.Linear(wide, config["d_model"], bias=False)

    def __call__(self, x: mx.array, memory: mx.array, bias: Any) -> mx.array:
        """Return what X (B, T, D) finds in MEMORY (B, S, D)."""
        q, k, v = (
            made.reshape(*made.shape[:2], self.heads, -1).swapaxes(1, 2)
            for made in (self.query_proj(x), self.key_proj(memory), self.value_proj(memory))
        )
        found = mx.softmax(q @ k.swapaxes(-1, -2) + bias, axis=-1) @ v
        return self.out_proj(found.swapaxes(1, 2).reshape(*x.shape[:2], -1))


class Dense(nn.Module):
    """The feed-forward part."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wi = nn.Linear(config["d_model"], config["d_ff"], bias=False)
        self.wo = nn.Linear(config["d_ff"], config["d_model"], bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """Return the same shape as X."""
        return self.wo(nn.relu(self.wi(x)))


class Layer(nn.Module):
    """A layer of the encoder, or with CROSS of the decoder."""

    def __init__(self, config: Config, *, cross: bool) -> None:
        super().__init__()
        setattr(self, "self_attention" if cross else "attention", Attention(config))
        if cross:
            self.cross_attention = Attention(config)
        self.dense = Dense(config)
        for number in range(2 + cross):
            setattr(self, f"ln{number + 1}", nn.RMSNorm(config["d_model"], eps=1e-6))

    def __call__(self, x: mx.array, bias: mx.array, memory: mx.array | None = None) -> mx.array:
        """Return X (B, T, D) one layer on."""
        y = self.ln1(x)
        if memory is None:
            x = x + self.attention(y, y, bias)
            return x + self.dense(self.ln2(x))
        x = x + self.self_attention(y, y, bias)
        x = x + self.cross_attention(self.ln2(x), memory, 0)
        return x + self.dense(self.ln3(x))


class Biases(nn.Module):
    """What the distance of two places adds to their score."""

    def __init__(self, config: Config, *, causal: bool) -> None:
        super().__init__()
        self.count, self.most = (
            config["relative_attention_num_buckets"],
            config["relative_attention_max_distance"],
        )
        self.causal = causal
        self.embeddings = nn.Embedding(self.count, config["num_heads"])

    def __call__(self, length: int) -> mx.array:
        """Return (heads, LENGTH, LENGTH)."""
        places = np.arange(length)
        bias = self.embeddings(mx.array(self.buckets(places[None] - places[:, None])))
        mask = mx.triu(mx.full((length, length), -1e9), k=1) if self.causal else 0
        return bias.transpose(2, 0, 1) + mask

    def buckets(self, distance: np.ndarray) -> np.ndarray:
        """Return a bucket for each DISTANCE: one each for near ones, logarithmic beyond."""
        count = self.count if self.causal else self.count // 2
        first = 0 if self.causal else count * (distance > 0)
        far = np.maximum(-distance, 0) if self.causal else np.abs(distance)
        exact = count // 2
        ratio = np.log(np.maximum(far, 1) / exact) / np.log(self.most / exact)
        large = np.minimum(exact + (ratio * (count - exact)).astype(int), count - 1)
        return first + np.where(far < exact, far, large)


class Stack(nn.Module):
    """The encoder, or with CROSS the decoder."""

    def __init__(self, config: Config, *, cross: bool) -> None:
        super().__init__()
        count = config["num_decoder_layers" if cross else "num_layers"]
        self.layers = [Layer(config, cross=cross) for _ in range(count)]
        self.ln = nn.RMSNorm(config["d_model"], eps=1e-6)
        self.relative_attention_bias = Biases(config, causal=cross)

    def __call__(self, x: mx.array, memory: mx.array | None = None) -> mx.array:
        """Return X (B, T, D) at the end of the stack."""
        bias = self.relative_attention_bias(x.shape[1])
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.ln(x)


class T5(nn.Module):
    """An encoder and a decoder; the head is the embedding, as in the first version of T5."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config["vocab_size"], config["d_model"])
        self.encoder, self.decoder = (Stack(config, cross=cross) for cross in (False, True))

    def __call__(self, ids: mx.array, targets: mx.array) -> mx.array:
        """Return the logits (B, T, V) of TARGETS, given the source IDS."""
        memory = self.encoder(self.wte(ids))
        found = self.decoder(self.wte(targets), memory)
        return self.wte.as_linear(found * found.shape[-1] ** -0.5)


def load(folder: Path, config: Config) -> T5:
    """Return T5 with the weights in FOLDER, all of them and no others."""
    weights = {
        name: array
        for file in folder.glob("*.safetensors")
        for name, array in mx.load(str(file)).items()
    }
    model = T5(config)
    model.load_weights(list(weights.items()), strict=True)
    return model
