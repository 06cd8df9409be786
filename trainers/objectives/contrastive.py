"""Symmetric in-batch InfoNCE: every pair's text must find its own among those of the batch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..evaluation import measure_retrieval
from .outputs import hidden_states


class Embedding(nn.Module):
    """A sentence embedding: the mean of the hidden states where the mask is 1, of unit length.

    Reimers and Gurevych 2019, section 3 (MEAN pooling).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the texts IDS, shape ``(batch, width)``."""
        hidden = hidden_states(self.model(input_ids=ids, attention_mask=mask))
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return functional.normalize(mean, dim=-1)


class Contrastive(Embedding):
    """The loss of a batch of pairs (van den Oord et al. 2018, equation 4, in both directions).

    With ``s = q @ d.T / temperature`` it is the mean of the cross entropies of the rows of ``s``
    and of its columns, the diagonal being right.
    """

    dynamic: ClassVar = {
        f"{text}_{part}": {0: "batch", 1: text}
        for text in ("query", "document")
        for part in ("ids", "mask")
    }
    evaluated = Embedding
    evaluated_dynamic: ClassVar = {part: {0: "batch", 1: "sequence"} for part in ("ids", "mask")}
    metric = "mrr"
    higher_is_better = True
    measure = staticmethod(measure_retrieval)

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__(model)
        self.temperature = temperature

    def forward(  # type: ignore[override]  # the loss takes pairs where the embedding takes texts
        self, query_ids: Tensor, query_mask: Tensor, document_ids: Tensor, document_mask: Tensor
    ) -> Tensor:
        """Return the loss, a scalar."""
        queries = super().forward(query_ids, query_mask)
        documents = super().forward(document_ids, document_mask)
        scores = queries @ documents.T / self.temperature
        own = torch.arange(scores.shape[0], device=scores.device)
        rows = functional.cross_entropy(scores, own)
        columns = functional.cross_entropy(scores.T, own)
        return (rows + columns) / 2
