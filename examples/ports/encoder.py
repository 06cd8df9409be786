"""A text encoder with grouped-query attention, in PyTorch and in MLX."""

from __future__ import annotations

from typing import Any

from weighbridge.converters.models import Port, Signature

from .shared import Freedom, perturb

WORDS, POSITIONS, HIDDEN, WIDE, LAYERS = 61, 40, 48, 80, 3
HEADS, GROUPS, HEAD = 4, 2, 8
UPPER = (("sequence", POSITIONS), ("vocabulary", WORDS))
SIGNATURE = Signature(
    inputs=(
        Port("input_ids", "int64", ("batch", "sequence"), "token_ids", UPPER),
        Port("attention_mask", "int64", ("batch", "sequence"), "attention_mask", UPPER),
    ),
    outputs=(Port("hidden", "float32", ("batch", "sequence", HIDDEN), "hidden"),),
)
FREEDOM = Freedom(
    fuse=(
        (("layers.*.attention.query", "layers.*.attention.key", "layers.*.attention.value"), 0),
        (("layers.*.attention.key", "layers.*.attention.value"), GROUPS),
    )
)


def build() -> tuple[Any, Signature]:
    """Return the torch module and its signature."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(HIDDEN, HEADS * HEAD)
            self.key = nn.Linear(HIDDEN, GROUPS * HEAD)
            self.value = nn.Linear(HIDDEN, GROUPS * HEAD)
            self.output = nn.Linear(HEADS * HEAD, HIDDEN)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            heads = lambda y, n: y.unflatten(-1, (n, HEAD)).transpose(1, 2)  # noqa: E731
            q = heads(self.query(x), HEADS)
            k, v = heads(self.key(x), GROUPS), heads(self.value(x), GROUPS)
            k, v = (y.repeat_interleave(HEADS // GROUPS, 1) for y in (k, v))
            scores = q @ k.transpose(-1, -2) / HEAD**0.5
            weights = torch.where(mask, scores, -1e4).softmax(-1)
            return self.output((weights @ v).transpose(1, 2).flatten(2))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(HIDDEN)
            self.attention = Attention()
            self.mlp_norm = nn.LayerNorm(HIDDEN)
            self.intermediate = nn.Linear(HIDDEN, WIDE)
            self.output = nn.Linear(WIDE, HIDDEN)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = x + self.attention(self.attention_norm(x), mask)
            return x + self.output(functional.gelu(self.intermediate(self.mlp_norm(x))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word_embeddings = nn.Embedding(WORDS, HIDDEN)
            self.position_embeddings = nn.Embedding(POSITIONS, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(HIDDEN)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(input_ids.shape[1])
            x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
            for layer in self.layers:
                x = layer(x, attention_mask[:, None, None].bool())
            return self.norm(x)

    return perturb(Encoder(), 1), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:
    """Return the MLX module and its signature."""
    import mlx.core as mx
    from mlx import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(HIDDEN, HEADS * HEAD)
            self.key = nn.Linear(HIDDEN, GROUPS * HEAD)
            self.value = nn.Linear(HIDDEN, GROUPS * HEAD)
            self.output = nn.Linear(HEADS * HEAD, HIDDEN)

        def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
            heads = lambda y: y.reshape(*y.shape[:2], -1, HEAD).swapaxes(1, 2)  # noqa: E731
            q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            k, v = (mx.repeat(y, HEADS // GROUPS, axis=1) for y in (k, v))
            scores = q @ k.swapaxes(-1, -2) / HEAD**0.5
            weights = mx.softmax(mx.where(mask, scores, -1e4), axis=-1)
            return self.output((weights @ v).swapaxes(1, 2).reshape(*x.shape[:2], -1))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(HIDDEN)
            self.attention = Attention()
            self.mlp_norm = nn.LayerNorm(HIDDEN)
            self.intermediate = nn.Linear(HIDDEN, WIDE)
            self.output = nn.Linear(WIDE, HIDDEN)

        def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
            x = x + self.attention(self.attention_norm(x), mask)
            return x + self.output(nn.gelu(self.intermediate(self.mlp_norm(x))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word_embeddings = nn.Embedding(WORDS, HIDDEN)
            self.position_embeddings = nn.Embedding(POSITIONS, HIDDEN)
            self.layers = [Layer() for _ in range(LAYERS)]
            self.norm = nn.LayerNorm(HIDDEN)

        def __call__(self, input_ids: mx.array, attention_mask: mx.array) -> mx.array:
            positions = mx.arange(input_ids.shape[1])
            x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
            for layer in self.layers:
                x = layer(x, attention_mask[:, None, None].astype(mx.bool_))
            return self.norm(x)

    return Encoder(), SIGNATURE
