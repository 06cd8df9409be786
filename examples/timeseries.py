"""A small convolutional forecaster, once in PyTorch and once in MLX, with data to train it on.

The MLX twin is written by hand, with MLX's own layouts: it loads what ``convert torch-to-mlx`` wrote
and shows, independently of the map, that the convolutions were permuted as MLX wants them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from weighbridge.converters.models import Port, Signature

CHANNELS, HIDDEN, HISTORY, HORIZON = 3, 24, 96, 12
DILATIONS = (1, 2, 4, 8)
SIGNATURE = Signature(
    inputs=(Port("series", "float32", ("batch", CHANNELS, HISTORY), "series"),),
    outputs=(Port("forecast", "float32", ("batch", HORIZON), "series"),),
)


def build() -> tuple[Any, Signature]:
    """Return the forecaster as a torch module, and its signature."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """A causal dilated convolution with a residual connection."""

        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.padding = 2 * dilation
            self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, dilation=dilation)
            self.mix = nn.Conv1d(HIDDEN, HIDDEN, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map (batch, hidden, time) to the same shape."""
            return x + self.mix(functional.gelu(self.conv(functional.pad(x, (self.padding, 0)))))

    class Forecaster(nn.Module):
        """Dilated causal convolutions and a linear head on the last step."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv1d(CHANNELS, HIDDEN, 5, padding=2)
            self.blocks = nn.ModuleList(Block(dilation) for dilation in DILATIONS)
            self.head = nn.Linear(HIDDEN, HORIZON)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            """Forecast the next HORIZON steps of the first channel."""
            x = self.stem(series)
            for block in self.blocks:
                x = block(x)
            return self.head(x[:, :, -1])

    torch.manual_seed(0)
    return Forecaster(), SIGNATURE


def build_mlx() -> tuple[Any, Signature]:
    """Return the same forecaster as a native MLX module, channels last."""
    import mlx.core as mx
    from mlx import nn

    class Block(nn.Module):
        """A causal dilated convolution with a residual connection."""

        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, dilation=dilation)
            self.mix = nn.Conv1d(HIDDEN, HIDDEN, 1)
            self._padding = 2 * dilation

        def __call__(self, x: mx.array) -> mx.array:
            padded = mx.pad(x, [(0, 0), (self._padding, 0), (0, 0)])
            return x + self.mix(nn.gelu(self.conv(padded)))

    class Forecaster(nn.Module):
        """Dilated causal convolutions and a linear head on the last step."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv1d(CHANNELS, HIDDEN, 5, padding=2)
            self.blocks = [Block(dilation) for dilation in DILATIONS]
            self.head = nn.Linear(HIDDEN, HORIZON)

        def __call__(self, series: mx.array) -> mx.array:
            x = self.stem(series.transpose(0, 2, 1))
            for block in self.blocks:
                x = block(x)
            return self.head(x[:, -1])

    return Forecaster(), SIGNATURE


def series(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return COUNT histories (count, channels, history) and futures (count, horizon), float32.

    Each channel is a trend, two seasons and noise; the first one also follows the second with a lag.
    """
    generator = np.random.default_rng(seed)
    time = np.arange(HISTORY + HORIZON)
    shape = (count, CHANNELS, 1)
    trend = generator.normal(0, 0.01, shape) * time
    daily = generator.uniform(0.5, 1.5, shape) * np.sin(
        2 * np.pi * (time / 24 + generator.random(shape))
    )
    weekly = generator.uniform(0.2, 0.8, shape) * np.sin(
        2 * np.pi * (time / 56 + generator.random(shape))
    )
    values = trend + daily + weekly + generator.normal(0, 0.1, (count, CHANNELS, len(time)))
    values[:, 0] += 0.5 * np.roll(values[:, 1], 6, axis=-1)
    values = values.astype(np.float32)
    return values[:, :, :HISTORY], values[:, 0, HISTORY:]


def write_data(folder: Path) -> dict[str, Path]:
    """Write train, validation and test splits as npz files to FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for seed, (split, count) in enumerate((("train", 512), ("validation", 128), ("test", 128))):
        history, future = series(count, seed)
        paths[split] = folder / f"{split}.npz"
        np.savez(paths[split], series=history, target=future)
    return paths


def write_model(folder: Path) -> Path:
    """Write the untrained torch model as a directory."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    module, _ = build()
    save_file(module.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "forecaster"}) + "\n")
    return folder
