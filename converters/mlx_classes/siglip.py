"""The vision tower of SigLIP alone; mlx-embeddings has a class for both towers together."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .clip import MLP, Encoder, Tower
from .layers import Outputs, Weights, attention, sides, without


@dataclass
class ModelArgs(Tower):
    """The configuration; see transformers' ``SiglipVisionConfig``."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    patch_size: int = 16
    vision_use_head: bool = True


class Embeddings(nn.Module):
    """Patches and their positions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size, (height, width) = sides(args.patch_size), sides(args.image_size)
        patches = (height // size[0]) * (width // size[1])
        self.patch_embedding = nn.Conv2d(args.num_channels, args.hidden_size, size, stride=size)
        self.position_embedding = nn.Embedding(patches, args.hidden_size)

    def __call__(self, pixel_values: mx.array) -> mx.array:
        patches = self.patch_embedding(pixel_values.transpose(0, 2, 3, 1)).flatten(1, 2)
        return patches + self.position_embedding.weight


class Gathering(nn.Module):
    """Attention of one query, its three layers kept as one, as PyTorch keeps them."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width, self.heads = args.hidden_size, args.num_attention_heads
        self.in_proj_weight = mx.zeros((3 * width, width))
        self.in_proj_bias = mx.zeros(3 * width)
        self.out_proj = nn.Linear(width, width)

    def __call__(self, query: mx.array, x: mx.array) -> mx.array:
        width = x.shape[-1]
        rows = zip(self.in_proj_weight.split(3), self.in_proj_bias.split(3), strict=True)
        q, k, v = (it @ w.T + b for it, (w, b) in zip((query, x, x), rows, strict=True))
        return self.out_proj(attention(q, k, v, self.heads, (width // self.heads) ** -0.5))


class Head(nn.Module):
    """What one learned query gathers of all patches."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.probe = mx.zeros((1, 1, args.hidden_size))
        self.attention = Gathering(args)
        self.layernorm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.mlp = MLP(args)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.attention(mx.broadcast_to(self.probe, (len(x), 1, x.shape[-1])), x)
        return (x + self.mlp(self.layernorm(x)))[:, 0]


class Model(nn.Module):
    """The tower, with the head that pools or without."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)
        self.post_layernorm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        if args.vision_use_head:
            self.head = Head(args)

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of the tower alone."""
        return without(weights, "embeddings.position_ids", prefix="vision_model.")

    def __call__(self, pixel_values: mx.array) -> Outputs:
        x = self.post_layernorm(self.encoder(self.embeddings(pixel_values)))
        if "head" not in self:
            return {"last_hidden_state": x}
        return {"last_hidden_state": x, "pooler_output": self.head(x)}
