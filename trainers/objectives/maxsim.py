"""Late interaction: each token of a query looks for its best token of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from .embedding import Embedding, TokenEmbedding, projection_of, tokens_of
from .pairwise import Pairwise, hinge, info_nce


class MaxSim(Pairwise):
    """InfoNCE of the sums of the best matches, perhaps with a margin beside it.

    The score of a query and a document is the sum over the query's tokens of the largest product
    with a token of the document (Khattab and Zaharia 2020, equation 3). With TOP_K only the TOP_K best
    matches of a query's token within the batch count, and the sum is divided by the number of the
    query's tokens that have a match in the document (XTR: Lee et al. 2023, equation 5); a split is
    ranked by all matches. With WIDTH the hidden states are projected to it, see :func:`projection_of`.
    """

    projection: Tensor | None
    evaluated: ClassVar[type[Embedding]] = TokenEmbedding
    evaluated_options: ClassVar[tuple[str, ...]] = ("width",)

    def __init__(
        self,
        model: nn.Module,
        temperature: float = 1.0,
        margin: float = 0.0,
        margin_weight: float = 0.0,
        top_k: int | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(model)
        self.register_buffer("projection", projection_of(model, width), persistent=False)
        self.temperature, self.top_k = temperature, top_k
        self.margin, self.margin_weight = margin, margin_weight

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the tokens of IDS."""
        return tokens_of(self.model, ids, mask, self.projection)

    def nearness(self, queries: Tensor, documents: Sequence[Tensor]) -> Tensor:
        """Return the scores of the tokens' embeddings, which are zero where there is no token."""
        return torch.cat([_best(_products(queries, it))[0].sum(1) for it in documents], 1)

    def scores(self, queries: Tensor, documents: Sequence[Tensor]) -> Tensor:
        """Return the same, with TOP_K by the best matches within the batch alone."""
        if self.top_k is None:
            return self.nearness(queries, documents)
        matches = [_products(queries, tokens) for tokens in documents]
        every = torch.cat([it.flatten(2) for it in matches], 2)
        least = every.detach().topk(self.top_k, -1).values.amin(-1)[:, :, None, None]
        found = [_best(it.masked_fill(it < least, -torch.inf)) for it in matches]
        real = (queries != 0).any(-1)[:, :, None]
        return torch.cat([_mean(best, there & real) for best, there in found], 1)

    def loss(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the loss of SCORES."""
        loss = info_nce(scores / self.temperature, others, symmetric=False)
        if not self.margin_weight:
            return loss
        return loss + self.margin_weight * hinge(scores, others, self.margin)


def _products(queries: Tensor, documents: Tensor) -> Tensor:
    """Return the product of every two tokens, -inf where the document has none.

    Of shape ``(queries, tokens of a query, documents, tokens of a document)``.
    """
    products = torch.einsum("qiw,djw->qidj", queries, documents)
    return products.masked_fill(~(documents != 0).any(-1), -torch.inf)


def _best(matches: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best match of each token in each document, 0 where there is none, and whether there is."""
    best = matches.amax(-1)
    there = best > -torch.inf
    return best.masked_fill(~there, 0.0), there


def _mean(best: Tensor, there: Tensor) -> Tensor:
    return (best * there).sum(1) / there.sum(1).clamp(min=1)
