"""ResNet: a convolutional backbone, with a classifier or without."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .layers import Args, Outputs, Weights, activation, head_of, labels_of, without

REDUCTION = 4  # of the channels inside a bottleneck


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``ResNetConfig``."""

    hidden_sizes: list[int]
    depths: list[int]
    embedding_size: int = 64
    num_channels: int = 3
    layer_type: str = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    architectures: list[str] | None = None


class ConvLayer(nn.Module):
    """A convolution without bias, the statistics that it was trained with, an activation."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, act: str = ""):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.normalization = nn.BatchNorm(outputs)
        self.act = activation(act) if act else None

    def __call__(self, x: mx.array) -> mx.array:
        x = self.normalization(self.convolution(x))
        return self.act(x) if self.act else x


class Block(nn.Module):
    """A few convolutions beside a shortcut, which is one too where size or width changes."""

    def __init__(self, args: ModelArgs, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        act, inner = "relu", outputs // REDUCTION
        if args.layer_type == "bottleneck":
            first, second = (stride, 1) if args.downsample_in_bottleneck else (1, stride)
            self.layer = [
                ConvLayer(inputs, inner, 1, first, act),
                ConvLayer(inner, inner, 3, second, act),
                ConvLayer(inner, outputs, 1),
            ]
        else:
            self.layer = [ConvLayer(inputs, outputs, 3, stride, act), ConvLayer(outputs, outputs)]
        self.act = activation(args.hidden_act)
        if inputs != outputs or stride != 1:
            self.shortcut = ConvLayer(inputs, outputs, 1, stride)

    def __call__(self, x: mx.array) -> mx.array:
        rest = self.shortcut(x) if "shortcut" in self else x
        for layer in self.layer:
            x = layer(x)
        return self.act(x + rest)


class Stage(nn.Module):
    """Blocks of one width; the first may halve the resolution."""

    def __init__(self, args: ModelArgs, inputs: int, outputs: int, stride: int, depth: int):
        super().__init__()
        strides = [stride, *[1] * (depth - 1)]
        widths = [inputs, *[outputs] * (depth - 1)]
        rows = zip(widths, [outputs] * depth, strides, strict=True)
        self.layers = [Block(args, *row) for row in rows]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
        return x


class Embedder(nn.Module):
    """The first convolution."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embedder = ConvLayer(args.num_channels, args.embedding_size, 7, 2, args.hidden_act)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def __call__(self, x: mx.array) -> mx.array:
        return self.pool(self.embedder(x))


class Encoder(nn.Module):
    """The stages."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        widths = [args.embedding_size, *args.hidden_sizes]
        strides = [2 if args.downsample_in_first_stage else 1, *[2] * (len(args.depths) - 1)]
        rows = zip(widths, args.hidden_sizes, strides, args.depths, strict=False)
        self.stages = [Stage(args, *row) for row in rows]

    def __call__(self, x: mx.array) -> mx.array:
        for stage in self.stages:
            x = stage(x)
        return x


class Model(nn.Module):
    """ResNet in eval mode: each batch normalisation uses the statistics of its checkpoint."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.embedder = Embedder(args)
        self.encoder = Encoder(args)
        if head_of(args.architectures) == "ForImageClassification":
            labels = labels_of(args.id2label, args.num_labels)
            self.classifier = [nn.Identity(), nn.Linear(args.hidden_sizes[-1], labels)]
        self.eval()

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS by the names of the bare model."""
        return without(weights, prefix="resnet.")

    def __call__(self, pixel_values: mx.array) -> Outputs:
        x = self.encoder(self.embedder(pixel_values.transpose(0, 2, 3, 1)))
        pooled = x.mean(1).mean(1)  # rows, then columns: short sums err less
        if "classifier" in self:
            return {"logits": self.classifier[1](pooled)}
        hidden = x.transpose(0, 3, 1, 2)
        return {"last_hidden_state": hidden, "pooler_output": pooled[:, :, None, None]}
