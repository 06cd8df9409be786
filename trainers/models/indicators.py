"""A transformer that tells from a window of indicators what a price does next."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...converters.models.signature import Port, Signature
from .blocks import Sizes, initialized, stacked


class IndicatorClassifier(nn.Module):
    """Blocks over the bars of a window; the last bar, which has seen all others, is classified.

    Args:
        features: of a bar.
        classes: to tell apart.
        window: most bars of a window.
        sizes: of the blocks.
    """

    def __init__(self, features: int, classes: int, window: int, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Linear(features, sizes.width)
        self.positions = nn.Parameter(torch.zeros(window, sizes.width))
        self.blocks = stacked(sizes, causal=False)
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, classes)
        series = Port("series", "float32", ("batch", window, features), "series")
        logits = Port("logits", "float32", ("batch", classes), "logits")
        self.signature = Signature((series,), (logits,))

    def forward(self, series: Tensor) -> Tensor:
        """Return logits, shape ``(batch, classes)``, of SERIES, shape ``(batch, bars, features)``."""
        hidden = self.embed(series) + self.positions[-series.shape[1] :]
        logits: Tensor = self.head(self.norm(self.blocks(hidden)[:, -1]))
        return logits


def build(  # noqa: PLR0913 - each is an option of the configuration
    *,
    features: int = 11,
    classes: int = 3,
    window: int = 32,
    width: int = 48,
    layers: int = 2,
    heads: int = 4,
    unit: str = "swiglu",
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Return a classifier with random weights, the same for the same SEED.

    Args:
        features: of a bar; the data of kind ``bars`` has 11.
        classes: 3 (down, neither, up), or 2 where ``data.threshold`` is 0.
        window: bars, as ``data.window``.
        width: of the blocks.
        layers: blocks.
        heads: of attention.
        unit: feed-forward unit, see :mod:`.units`.
        dropout: part that is left out in training.
        seed: of the weights.
    """
    sizes = Sizes(width, layers, heads, unit, dropout)
    return initialized(IndicatorClassifier(features, classes, window, sizes), layers, seed)
