"""ViT: a vision transformer, with a pooler, a classifier or neither."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .layers import (
    Args,
    Outputs,
    Weights,
    activation,
    attention,
    head_of,
    labels_of,
    sides,
    without,
)


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``ViTConfig``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 16
    num_channels: int = 3
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    qkv_bias: bool = True
    pooler_output_size: int | None = None
    pooler_act: str = "tanh"
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    architectures: list[str] | None = None


class PatchEmbeddings(nn.Module):
    """Patches of an image, from a convolution."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size = sides(args.patch_size)
        self.projection = nn.Conv2d(args.num_channels, args.hidden_size, size, stride=size)

    def __call__(self, pixel_values: mx.array) -> mx.array:
        return self.projection(pixel_values.transpose(0, 2, 3, 1)).flatten(1, 2)


class Embeddings(nn.Module):
    """Patches behind a class token, and their positions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        (height, width), patch = sides(args.image_size), sides(args.patch_size)
        patches = (height // patch[0]) * (width // patch[1])
        self.cls_token = mx.zeros((1, 1, args.hidden_size))
        self.position_embeddings = mx.zeros((1, patches + 1, args.hidden_size))
        self.patch_embeddings = PatchEmbeddings(args)

    def __call__(self, pixel_values: mx.array) -> mx.array:
        patches = self.patch_embeddings(pixel_values)
        first = mx.broadcast_to(self.cls_token, (len(patches), 1, patches.shape[-1]))
        return mx.concatenate([first, patches], axis=1) + self.position_embeddings


class SelfAttention(nn.Module):
    """What each patch gathers from the others."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.heads = args.num_attention_heads
        self.scale = (args.hidden_size // self.heads) ** -0.5
        self.query = nn.Linear(args.hidden_size, args.hidden_size, bias=args.qkv_bias)
        self.key = nn.Linear(args.hidden_size, args.hidden_size, bias=args.qkv_bias)
        self.value = nn.Linear(args.hidden_size, args.hidden_size, bias=args.qkv_bias)

    def __call__(self, x: mx.array) -> mx.array:
        return attention(self.query(x), self.key(x), self.value(x), self.heads, self.scale)


class Dense(nn.Module):
    """A linear layer, under the name that the checkpoints have."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x)


class Attention(nn.Module):
    """Attention and its output layer."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = SelfAttention(args)
        self.output = Dense(args.hidden_size, args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.output(self.attention(x))


class Layer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = Attention(args)
        self.intermediate = Dense(args.hidden_size, args.intermediate_size)
        self.output = Dense(args.intermediate_size, args.hidden_size)
        self.layernorm_before = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.layernorm_after = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.act = activation(args.hidden_act)

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(self.act(self.intermediate(self.layernorm_after(x))))


class Encoder(nn.Module):
    """The layers."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.layer = [Layer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layer:
            x = layer(x)
        return x


class Model(nn.Module):
    """ViT, with what its checkpoint has at the end."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)
        self.layernorm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.pooler_act = activation(args.pooler_act)
        if head_of(args.architectures) == "ForImageClassification":
            labels = labels_of(args.id2label, args.num_labels)
            self.classifier = nn.Linear(args.hidden_size, labels)
        else:
            self.pooler = Dense(args.hidden_size, args.pooler_output_size or args.hidden_size)

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of the bare model; the token of masked patches is left out."""
        found = without(weights, "embeddings.mask_token", prefix="vit.")
        if "pooler.dense.weight" not in found:
            self.pop("pooler", None)
        return found

    def __call__(self, pixel_values: mx.array) -> Outputs:
        x = self.layernorm(self.encoder(self.embeddings(pixel_values)))
        if "classifier" in self:
            return {"logits": self.classifier(x[:, 0])}
        if "pooler" not in self:
            return {"last_hidden_state": x}
        pooled = self.pooler_act(self.pooler(x[:, 0]))
        return {"last_hidden_state": x, "pooler_output": pooled}
