"""Modules of MLX alone, with factories that say what they take."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from weighbridge.converters.models import Port, Signature


class Encoder(nn.Module):
    """Quantized layers, a norm, a convolution and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 64, 3, padding=1)
        self.norm = nn.RMSNorm(64)
        self.layer = nn.Linear(64, 64)
        self.gru = nn.GRU(64, 8)

    def __call__(self, series: mx.array) -> mx.array:
        hidden = nn.gelu(self.norm(self.conv(series)))
        return self.gru(hidden + self.layer(hidden))[:, -1]


def encoder() -> tuple[nn.Module, Signature]:
    """Return an encoder of series, one layer quantized, and what it takes."""
    mx.random.seed(0)
    module = Encoder()
    nn.quantize(module, group_size=32, bits=4, class_predicate=lambda path, _: path == "layer")
    mx.eval(module.parameters())
    series = Port("series", "float32", ("batch", 5, 6), "series", (("batch", 4),))
    return module, Signature((series,), (Port("last", "float32", ("batch", 8), "hidden"),))
