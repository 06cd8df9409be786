"""ConvNeXt: a convolutional backbone, with a classifier or without."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .layers import Args, Outputs, Weights, activation, head_of, labels_of, sides, without

EPS = 1e-6  # of every norm but the last, whatever the configuration says


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``ConvNextConfig``."""

    hidden_sizes: list[int]
    depths: list[int]
    num_channels: int = 3
    patch_size: int | list[int] = 4
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    layer_scale_init_value: float = 1e-6
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    architectures: list[str] | None = None


class Layer(nn.Module):
    """A convolution of each channel by itself, then two layers across channels."""

    def __init__(self, args: ModelArgs, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.layernorm = nn.LayerNorm(width, EPS)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.act = activation(args.hidden_act)
        if args.layer_scale_init_value > 0:
            self.layer_scale_parameter = mx.ones(width)

    def __call__(self, x: mx.array) -> mx.array:
        change = self.pwconv2(self.act(self.pwconv1(self.layernorm(self.dwconv(x)))))
        scaled = "layer_scale_parameter" in self
        return x + (self.layer_scale_parameter * change if scaled else change)


class Stage(nn.Module):
    """Layers of one width, at half the resolution of the stage before."""

    def __init__(self, args: ModelArgs, inputs: int, outputs: int, depth: int, *, first: bool):
        super().__init__()
        norm, halved = nn.LayerNorm(inputs, EPS), nn.Conv2d(inputs, outputs, 2, 2)
        self.downsampling_layer = [] if first else [norm, halved]
        self.layers = [Layer(args, outputs) for _ in range(depth)]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in [*self.downsampling_layer, *self.layers]:
            x = layer(x)
        return x


class Embeddings(nn.Module):
    """Patches of an image, from a convolution."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        size, width = sides(args.patch_size), args.hidden_sizes[0]
        self.patch_embeddings = nn.Conv2d(args.num_channels, width, size, stride=size)
        self.layernorm = nn.LayerNorm(width, EPS)

    def __call__(self, x: mx.array) -> mx.array:
        return self.layernorm(self.patch_embeddings(x))


class Encoder(nn.Module):
    """The stages."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        before = [args.hidden_sizes[0], *args.hidden_sizes]
        rows = enumerate(zip(before, args.hidden_sizes, args.depths, strict=False))
        self.stages = [Stage(args, *row, first=number == 0) for number, row in rows]

    def __call__(self, x: mx.array) -> mx.array:
        for stage in self.stages:
            x = stage(x)
        return x


class Model(nn.Module):
    """ConvNeXt."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width = args.hidden_sizes[-1]
        self.embeddings = Embeddings(args)
        self.encoder = Encoder(args)
        self.layernorm = nn.LayerNorm(width, args.layer_norm_eps)
        if head_of(args.architectures) == "ForImageClassification":
            self.classifier = nn.Linear(width, labels_of(args.id2label, args.num_labels))

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of the bare model."""
        return without(weights, prefix="convnext.")

    def __call__(self, pixel_values: mx.array) -> Outputs:
        x = self.encoder(self.embeddings(pixel_values.transpose(0, 2, 3, 1)))
        pooled = self.layernorm(x.mean(1).mean(1))  # rows, then columns: short sums err less
        if "classifier" in self:
            return {"logits": self.classifier(pooled)}
        return {"last_hidden_state": x.transpose(0, 3, 1, 2), "pooler_output": pooled}
