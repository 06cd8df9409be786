"""A residual convolutional network with batch norm, in PyTorch and in MLX (channels last inside)."""

from __future__ import annotations

from typing import Any

from weighbridge.converters.models import Port, Signature

from .shared import Freedom, perturb

CHANNELS, STEM, WIDTHS, CLASSES, SIDE = 3, 12, (12, 20, 28), 10, 24
SIGNATURE = Signature(
    inputs=(Port("pixel_values", "float32", ("batch", CHANNELS, SIDE, SIDE), "pixels"),),
    outputs=(Port("logits", "float32", ("batch", CLASSES), "hidden"),),
)
FREEDOM = Freedom(convolutions=("stem", "conv1", "conv2", "shortcut"))


def build() -> tuple[Any, Signature]:
    """Return the torch module and its signature."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.shortcut = nn.Conv2d(given, width, 1, stride) if stride > 1 else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
            return (y + (x if self.shortcut is None else self.shortcut(x))).relu()

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(CHANNELS, STEM, 5, 2, 2, bias=False)
            self.stem_norm = nn.BatchNorm2d(STEM)
            given = (STEM, *WIDTHS)
            self.stages = nn.ModuleList(
                nn.ModuleList([Block(given[n], w, 1 + (n > 0)), Block(w, w, 1)])
                for n, w in enumerate(WIDTHS)
            )
            self.classifier = nn.Linear(WIDTHS[-1], CLASSES)

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            x = self.stem_norm(self.stem(pixel_values)).relu()
            for stage in self.stages:
                for block in stage:
                    x = block(x)
            return self.classifier(x.mean((2, 3)))

    return perturb(Network(), 3), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:
    """Return the MLX module and its signature."""
    import mlx.core as mx
    from mlx import nn

    class Block(nn.Module):
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm(width)
            if stride > 1:
                self.shortcut = nn.Conv2d(given, width, 1, stride)

        def __call__(self, x: mx.array) -> mx.array:
            y = self.bn2(self.conv2(nn.relu(self.bn1(self.conv1(x)))))
            return nn.relu(y + (self.shortcut(x) if "shortcut" in self else x))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(CHANNELS, STEM, 5, 2, 2, bias=False)
            self.stem_norm = nn.BatchNorm(STEM)
            given = (STEM, *WIDTHS)
            self.stages = [
                [Block(given[n], w, 1 + (n > 0)), Block(w, w, 1)] for n, w in enumerate(WIDTHS)
            ]
            self.classifier = nn.Linear(WIDTHS[-1], CLASSES)

        def __call__(self, pixel_values: mx.array) -> mx.array:
            x = nn.relu(self.stem_norm(self.stem(pixel_values.transpose(0, 2, 3, 1))))
            for stage in self.stages:
                for block in stage:
                    x = block(x)
            return self.classifier(x.mean((1, 2)))

    return Network().eval(), SIGNATURE
