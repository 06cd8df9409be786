"""A small GPT whose feed-forward unit is chosen by name."""

from __future__ import annotations

from torch import Tensor, arange, nn

from ...converters.models.signature import causal_signature
from .blocks import Sizes, initialized, stacked


class GatedGpt(nn.Module):
    """A decoder with learned positions; the embedding of tokens is its head too.

    Args:
        vocabulary: token ids.
        positions: most tokens of a text.
        sizes: of the blocks.
    """

    def __init__(self, vocabulary: int, positions: int, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Embedding(positions, sizes.width)
        self.blocks = stacked(sizes, causal=True)
        self.norm = nn.LayerNorm(sizes.width)
        self.signature = causal_signature(
            {"vocab_size": vocabulary, "max_position_embeddings": positions}
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return logits, shape ``(batch, sequence, vocabulary)``.

        Args:
            input_ids: shape ``(batch, sequence)``, padded at the end if at all.
            attention_mask: not needed: no position sees the padding behind it.
        """
        del attention_mask
        places = arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.norm(self.blocks(self.tokens(input_ids) + self.positions(places)))
        return nn.functional.linear(hidden, self.tokens.weight)


def build(  # noqa: PLR0913 - each is an option of the configuration
    *,
    unit: str = "swiglu",
    vocabulary: int = 2048,
    positions: int = 256,
    width: int = 96,
    layers: int = 3,
    heads: int = 4,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Return a decoder with random weights, the same for the same SEED.

    Args:
        unit: feed-forward unit, see :mod:`.units`: gelu, relu, glu, reglu, geglu, swiglu, swish_glu or
            blend_glu.
        vocabulary: token ids, as many as the tokenizer has.
        positions: most tokens of a text.
        width: of the blocks.
        layers: blocks.
        heads: of attention.
        dropout: part that is left out in training.
        seed: of the weights.
    """
    sizes = Sizes(width, layers, heads, unit, dropout)
    return initialized(GatedGpt(vocabulary, positions, sizes), layers, seed)
