"""Blocks of a transformer: attention and a feed-forward unit, each behind a normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInputError
from .units import FeedForward


class Sizes(NamedTuple):
    """Sizes of a transformer.

    Attributes:
        width: of the residual stream.
        layers: blocks.
        heads: of attention; they divide the width.
        unit: the feed-forward unit, see :mod:`.units`.
        dropout: part of what each half of a block adds that is left out in training.
    """

    width: int
    layers: int
    heads: int
    unit: str
    dropout: float


class Block(nn.Module):
    """Attention, then a feed-forward unit four times as wide (plain) as the stream.

    Args:
        sizes: of the transformer.
        causal: whether a position sees only those before it.

    Raises:
        BadInputError: the heads do not divide the width, or there is no such unit.
    """

    def __init__(self, sizes: Sizes, *, causal: bool) -> None:
        super().__init__()
        width = sizes.width
        if min(width, sizes.heads) < 1 or width % sizes.heads:
            raise BadInputError(f"width {width} is no multiple of {sizes.heads} heads")
        self._heads, self._causal = sizes.heads, causal
        self.attention_norm, self.unit_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.unit = FeedForward(width, 4 * width, sizes.unit)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return an array of X's shape, ``(batch, sequence, width)``."""
        x = x + self.dropout(self._attend(self.attention_norm(x)))
        added: Tensor = x + self.dropout(self.unit(self.unit_norm(x)))
        return added

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self._causal)
        found: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return found


def stacked(sizes: Sizes, *, causal: bool) -> nn.Sequential:
    """Return the blocks of a transformer of SIZES; see :class:`Block`.

    Raises:
        BadInputError: there is none.
    """
    if sizes.layers < 1:
        raise BadInputError(f"layers is {sizes.layers}; a transformer has at least 1")
    return nn.Sequential(*(Block(sizes, causal=causal) for _ in range(sizes.layers)))


def initialized(module: nn.Module, layers: int, seed: int) -> nn.Module:
    """Return MODULE with normal weights of deviation 0.02 by SEED, smaller where LAYERS add up, and no bias.

    As GPT-2 (Radford et al. 2019): weights that write into the residual stream are divided by
    ``sqrt(2 * layers)``.
    """
    random = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        if weight.ndim > 1:
            scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
            nn.init.normal_(weight, std=0.02 * scale, generator=random)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
    return module
