"""A decoder with a mixture of experts in all layers but the first, in PyTorch and in MLX."""

from __future__ import annotations

from typing import Any

from weighbridge.converters.models import Port, Signature

from .shared import Freedom, perturb

WORDS, HIDDEN, WIDE, NARROW, LAYERS, EXPERTS, TOP = 67, 40, 72, 56, 3, 4, 2
HEADS, HEAD = 5, 8
UPPER = (("sequence", 64), ("vocabulary", WORDS))
SIGNATURE = Signature(
    inputs=(Port("input_ids", "int64", ("batch", "sequence"), "token_ids", UPPER),),
    outputs=(Port("logits", "float32", ("batch", "sequence", WORDS), "hidden"),),
)
ATTENTION = tuple(f"layers.*.attention.{x}_proj" for x in "qkv")
FREEDOM = Freedom(
    fuse=(
        (ATTENTION, HEADS),
        (("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"), 0),
        (("layers.*.shared.gate_proj", "layers.*.shared.up_proj"), 0),
    ),
    stack=("layers.*.experts",),
)


def build() -> tuple[Any, Signature]:  # noqa: C901  # classes that belong together
    """Return the torch module and its signature."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)
            )
            self.q_norm, self.k_norm = nn.RMSNorm(HEAD, 1e-6), nn.RMSNorm(HEAD, 1e-6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                layer(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = self.q_norm(q) @ self.k_norm(k).transpose(-1, -2) / HEAD**0.5
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            weights = torch.where(mask, scores, -1e4).softmax(-1)
            return self.o_proj((weights @ v).transpose(1, 2).flatten(2))

    class Mlp(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(HIDDEN, width, bias=False)
            self.up_proj = nn.Linear(HIDDEN, width, bias=False)
            self.down_proj = nn.Linear(width, HIDDEN, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.input_norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.attention = Attention()
            self.post_norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.sparse = sparse
            if sparse:
                self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
                self.experts = nn.ModuleList(Mlp(NARROW) for _ in range(EXPERTS))
                self.shared = Mlp(NARROW)
            else:
                self.mlp = Mlp(WIDE)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attention(self.input_norm(x))
            y = self.post_norm(x)
            if not self.sparse:
                return x + self.mlp(y)
            scores = self.router(y).softmax(-1)
            kept = scores >= scores.sort(-1, descending=True).values[..., TOP - 1, None]
            weights = torch.where(kept, scores, 0.0)
            each = torch.stack([expert(y) for expert in self.experts], -2)
            return x + self.shared(y) + (weights[..., None] * each).sum(-2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(WORDS, HIDDEN)
            self.layers = nn.ModuleList(Layer(n > 0) for n in range(LAYERS))
            self.norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.lm_head = nn.Linear(HIDDEN, WORDS, bias=False)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = self.embed_tokens(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

    return perturb(Decoder(), 2), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:  # noqa: C901
    """Return the MLX module and its signature."""
    import mlx.core as mx
    from mlx import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
                nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)
            )
            self.q_norm, self.k_norm = nn.RMSNorm(HEAD, 1e-6), nn.RMSNorm(HEAD, 1e-6)

        def __call__(self, x: mx.array) -> mx.array:
            q, k, v = (
                layer(x).reshape(*x.shape[:2], HEADS, HEAD).swapaxes(1, 2)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = self.q_norm(q) @ self.k_norm(k).swapaxes(-1, -2) / HEAD**0.5
            mask = mx.tril(mx.ones(scores.shape[-2:])).astype(mx.bool_)
            weights = mx.softmax(mx.where(mask, scores, -1e4), axis=-1)
            return self.o_proj((weights @ v).swapaxes(1, 2).reshape(x.shape))

    class Mlp(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(HIDDEN, width, bias=False)
            self.up_proj = nn.Linear(HIDDEN, width, bias=False)
            self.down_proj = nn.Linear(width, HIDDEN, bias=False)

        def __call__(self, x: mx.array) -> mx.array:
            return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.input_norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.attention = Attention()
            self.post_norm = nn.RMSNorm(HIDDEN, 1e-6)
            self._sparse = sparse
            if sparse:
                self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
                self.experts = [Mlp(NARROW) for _ in range(EXPERTS)]
                self.shared = Mlp(NARROW)
            else:
                self.mlp = Mlp(WIDE)

        def __call__(self, x: mx.array) -> mx.array:
            x = x + self.attention(self.input_norm(x))
            y = self.post_norm(x)
            if not self._sparse:
                return x + self.mlp(y)
            scores = mx.softmax(self.router(y), axis=-1)
            kept = scores >= mx.sort(scores, axis=-1)[..., -TOP, None]
            weights = mx.where(kept, scores, 0.0)
            each = mx.stack([expert(y) for expert in self.experts], -2)
            return x + self.shared(y) + (weights[..., None] * each).sum(-2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(WORDS, HIDDEN)
            self.layers = [Layer(n > 0) for n in range(LAYERS)]
            self.norm = nn.RMSNorm(HIDDEN, 1e-6)
            self.lm_head = nn.Linear(HIDDEN, WORDS, bias=False)

        def __call__(self, input_ids: mx.array) -> mx.array:
            x = self.embed_tokens(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.lm_head(self.norm(x))

    return Decoder(), SIGNATURE
