"""CLIP: a text tower, a vision tower, and scores of both. Names are those of mlx-examples.

A checkpoint of one tower alone has a ``model_type`` of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from .layers import Args, Outputs, Weights, activation, attention, sides


@dataclass
class Tower(Args):
    """The configuration of one tower; see transformers' ``CLIPTextConfig`` and ``CLIPVisionConfig``."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    projection_dim: int = 512
    vocab_size: int = 49408
    max_position_embeddings: int = 77
    eos_token_id: int | None = 49407
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``CLIPConfig``. That of a tower alone has no other in it."""

    model_type: str
    text_config: Any = None
    vision_config: Any = None
    projection_dim: int = 512
    architectures: list[str] | None = None

    @classmethod
    def from_dict(cls, config: Any) -> ModelArgs:
        """Return the configuration in CONFIG, a tower's own put where that of CLIP has it."""
        args = super().from_dict(config)
        tower = {"clip_text_model": "text_config", "clip_vision_model": "vision_config"}
        if args.model_type in tower:
            setattr(args, tower[args.model_type], config)
        if any(config.get(f"{key}_dict") is not None for key in tower.values()):
            raise ValueError("text_config_dict and vision_config_dict are not read here")
        args.text_config = args.text_config and Tower.from_dict(args.text_config)
        args.vision_config = args.vision_config and Tower.from_dict(args.vision_config)
        return args


class Attention(nn.Module):
    """Attention of a tower to itself."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.heads = args.num_attention_heads
        self.scale = (args.hidden_size // self.heads) ** -0.5
        self.q_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.k_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.v_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.out_proj = nn.Linear(args.hidden_size, args.hidden_size)

    def __call__(self, x: mx.array, mask: str | None) -> mx.array:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.out_proj(attention(q, k, v, self.heads, self.scale, mask))


class MLP(nn.Module):
    """The feed-forward part."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.act = activation(args.hidden_act)
        self.fc1 = nn.Linear(args.hidden_size, args.intermediate_size)
        self.fc2 = nn.Linear(args.intermediate_size, args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(self.act(self.fc1(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.self_attn = Attention(args)
        self.layer_norm1 = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.mlp = MLP(args)
        self.layer_norm2 = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, x: mx.array, mask: str | None) -> mx.array:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class Encoder(nn.Module):
    """The layers of a tower."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.layers = [EncoderLayer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array, mask: str | None = None) -> mx.array:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class TextEmbeddings(nn.Module):
    """Words and their positions."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(args.vocab_size, args.hidden_size)
        self.position_embedding = nn.Embedding(args.max_position_embeddings, args.hidden_size)

    def __call__(self, input_ids: mx.array) -> mx.array:
        return (
            self.token_embedding(input_ids) + self.position_embedding.weight[: input_ids.shape[1]]
        )


class TextModel(nn.Module):
    """The text tower; each token sees those before it."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.eos_token_id = args.eos_token_id
        self.embeddings = TextEmbeddings(args)
        self.encoder = Encoder(args)
        self.final_layer_norm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, input_ids: mx.array) -> tuple[mx.array, mx.array]:
        x = self.final_layer_norm(self.encoder(self.embeddings(input_ids), "causal"))
        # As in transformers: the first configurations say 2 and mean the highest id there is.
        wanted = input_ids if self.eos_token_id == 2 else input_ids == self.eos_token_id
        return x, x[mx.arange(len(x)), wanted.astype(mx.int32).argmax(-1)]


class VisionEmbeddings(nn.Module):
    """Patches behind a class token, and their positions."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        size, (height, width) = sides(args.patch_size), sides(args.image_size)
        patches = (height // size[0]) * (width // size[1])
        self.class_embedding = mx.zeros(args.hidden_size)
        self.patch_embedding = nn.Conv2d(
            args.num_channels, args.hidden_size, size, stride=size, bias=False
        )
        self.position_embedding = nn.Embedding(patches + 1, args.hidden_size)

    def __call__(self, pixel_values: mx.array) -> mx.array:
        patches = self.patch_embedding(pixel_values.transpose(0, 2, 3, 1)).flatten(1, 2)
        first = mx.broadcast_to(self.class_embedding, (len(patches), 1, patches.shape[-1]))
        return mx.concatenate([first, patches], axis=1) + self.position_embedding.weight


class VisionModel(nn.Module):
    """The vision tower; only what is pooled passes the last norm."""

    def __init__(self, args: Tower) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(args)
        self.pre_layrnorm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)  # their spelling
        self.encoder = Encoder(args)
        self.post_layernorm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)

    def __call__(self, pixel_values: mx.array) -> tuple[mx.array, mx.array]:
        x = self.encoder(self.pre_layrnorm(self.embeddings(pixel_values)))
        return x, self.post_layernorm(x[:, 0])


class Model(nn.Module):
    """Both towers with their projections, or one of them, as the configuration says."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        both = args.model_type == "clip"
        projected = both or "WithProjection" in (args.architectures or [""])[0]
        if text := args.text_config:
            self.text_model = TextModel(text)
            if projected:
                width = args.projection_dim if both else text.projection_dim
                self.text_projection = nn.Linear(text.hidden_size, width, bias=False)
        if vision := args.vision_config:
            self.vision_model = VisionModel(vision)
            if projected:
                width = args.projection_dim if both else vision.projection_dim
                self.visual_projection = nn.Linear(vision.hidden_size, width, bias=False)
        if both:
            self.logit_scale = mx.array(0.0)

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of both towers, which one tower alone need not have."""
        tower = {"clip_text_model": "text_model.", "clip_vision_model": "vision_model."}
        own = tower.get(self.args.model_type, "")
        kept = (own, "text_projection", "visual_projection")
        named = {k if k.startswith(kept) else own + k: v for k, v in weights.items()}
        return {k: v for k, v in named.items() if not k.endswith("position_ids")}

    def __call__(self, inputs: mx.array, pixel_values: mx.array | None = None) -> Outputs:
        if self.args.model_type == "clip_text_model":
            return self.tower(self.text_model(inputs), "text", "text_projection")
        if self.args.model_type == "clip_vision_model":
            return self.tower(self.vision_model(inputs), "image", "visual_projection")
        if pixel_values is None:
            raise ValueError("CLIP takes texts and images: model(input_ids, pixel_values)")
        text = unit(self.text_projection(self.text_model(inputs)[1]))
        image = unit(self.visual_projection(self.vision_model(pixel_values)[1]))
        scores = mx.exp(self.logit_scale) * (image @ text.T)
        return {"text_embeds": text, "image_embeds": image, "logits_per_image": scores}

    def tower(self, made: tuple[mx.array, mx.array], name: str, projection: str) -> Outputs:
        """Name what a tower MADE: its hidden states, and what is pooled or its embedding."""
        hidden, pooled = made
        if projection not in self:
            return {"last_hidden_state": hidden, "pooler_output": pooled}
        return {"last_hidden_state": hidden, f"{name}_embeds": self[projection](pooled)}


def unit(x: mx.array) -> mx.array:
    """Return X at length 1."""
    return x / mx.linalg.norm(x, axis=-1, keepdims=True)
