"""Embeddings of texts: one for a text, or one for each of its tokens."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from .outputs import hidden_states, run


class Embedding(nn.Module):
    """A sentence embedding: the mean of the hidden states where the mask is 1, of unit length.

    Reimers and Gurevych 2019, section 3 (MEAN pooling).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the texts IDS, shape ``(batch, width)``."""
        return self.of(self.model, ids, mask)

    @staticmethod
    def of(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what MODEL makes of the texts IDS."""
        hidden = hidden_states(run(model, {"ids": ids, "mask": mask}))
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return functional.normalize(mean, dim=-1)


class TokenEmbedding(Embedding):
    """An embedding of unit length for each token, zero where the mask is 0: ``(batch, sequence, width)``.

    Khattab and Zaharia 2020, section 3.2.
    """

    @staticmethod
    def of(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what MODEL makes of the texts IDS."""
        hidden = hidden_states(run(model, {"ids": ids, "mask": mask}))
        return functional.normalize(hidden, dim=-1) * mask.unsqueeze(-1).to(hidden.dtype)
