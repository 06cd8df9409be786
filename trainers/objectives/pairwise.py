"""Losses of pairs of texts: a query has to find its own document among those of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...converters.values import Array
from ..data.batches import Dataset
from ..evaluation import Scores, figures, measure_retrieval
from ..steps.base import Step
from .embedding import Embedding

QUERIES_AT_ONCE = 16  # scored against all documents of a split: of tokens, scores are large


class Pairwise(nn.Module):
    """What all such losses share: texts are embedded, every query is scored against every document.

    The documents are those of the batch and then the ``negative_*`` of each query, where the data has
    any. A document with the text of a query's own, or of one that belongs to the same query, is
    nobody's negative. The loss of a split has no ``negative_*``.
    """

    dynamic: ClassVar = {
        f"{text}_{part}": ({0: "batch", 2: text} if text == "negative" else {0: "batch", 1: text})
        for text in ("query", "document", "negative")
        for part in ("ids", "mask")
    }
    optional: ClassVar = frozenset({"negative_ids", "negative_mask"})
    evaluated: ClassVar[type[Embedding]] = Embedding
    evaluated_options: ClassVar[tuple[str, ...]] = ()
    evaluated_dynamic: ClassVar = {part: {0: "batch", 1: "sequence"} for part in ("ids", "mask")}
    metric = "mrr"
    higher_is_better = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        query_ids: Tensor,
        query_mask: Tensor,
        document_ids: Tensor,
        document_mask: Tensor,
        negative_ids: Tensor | None = None,
        negative_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar."""
        texts = [(query_ids, query_mask), (document_ids, document_mask)]
        if negative_ids is not None and negative_mask is not None:
            texts.append((negative_ids.flatten(0, 1), negative_mask.flatten(0, 1)))
        return self.judged([self.embed(*text) for text in texts], texts)

    def judged(
        self, embeddings: Sequence[Tensor], texts: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Return the loss of the EMBEDDINGS of TEXTS: queries, documents, perhaps negatives."""
        queries, *documents = embeddings
        return self.loss(self.scores(queries, documents), repeated(texts))

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the texts IDS, as the module for evaluation does."""
        return Embedding.of(self.model, ids, mask)

    def nearness(self, queries: Tensor, documents: Sequence[Tensor]) -> Tensor:
        """Return how near each of QUERIES is to each of DOCUMENTS, shape ``(queries, documents)``."""
        return queries @ torch.cat([*documents]).T

    def scores(self, queries: Tensor, documents: Sequence[Tensor]) -> Tensor:
        """Return the scores that are trained: the same, where a loss does not say else."""
        return self.nearness(queries, documents)

    def loss(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the loss of SCORES, in which document i is query i's; OTHERS count for nothing."""
        raise NotImplementedError

    @classmethod
    @figures("loss", "p@1", "mrr", "r@10")
    def measure(cls, step: Step, dataset: Dataset, size: int, **options: Any) -> Scores:
        """Return loss, P@1, MRR and R@10 of finding every pair's document in the split."""
        return measure_retrieval(step, dataset, size, cls.alone(**options))

    @classmethod
    def alone(cls, **options: Any) -> Self:
        """Return the loss without a model, for embeddings that there are."""
        judging = {key: it for key, it in options.items() if key not in cls.evaluated_options}
        return cls(nn.Identity(), **judging)

    @classmethod
    def from_embeddings(cls, **options: Any) -> nn.Module:
        """Return the module that takes the embeddings of all texts too, and returns the loss."""
        return OfEmbeddings(cls.alone(**options))

    @torch.no_grad()
    def scored(self, queries: Array, documents: Array) -> Array:
        """Return the scores of arrays in float64."""
        sides = [torch.from_numpy(side).double() for side in (queries, documents)]
        parts = [self.nearness(part, [sides[1]]) for part in torch.split(sides[0], QUERIES_AT_ONCE)]
        return np.asarray(torch.cat(parts).numpy())

    @torch.no_grad()
    def loss_of(self, scores: Array) -> float:
        """Return the loss of an array of scores, in float64."""
        none = torch.zeros(scores.shape, dtype=torch.bool)
        return float(self.loss(torch.from_numpy(scores), none))


class OfEmbeddings(nn.Module):
    """The loss PAIRWISE as a function of the texts and their embeddings, shaped as the batch has them."""

    def __init__(self, pairwise: Pairwise) -> None:
        super().__init__()
        self.pairwise = pairwise

    def forward(  # noqa: PLR0913, PLR0917 - torch.export takes sizes that vary of named inputs alone
        self,
        query_ids: Tensor,
        query_mask: Tensor,
        query_embeddings: Tensor,
        document_ids: Tensor,
        document_mask: Tensor,
        document_embeddings: Tensor,
        negative_ids: Tensor | None = None,
        negative_mask: Tensor | None = None,
        negative_embeddings: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar."""
        texts = [(query_ids, query_mask), (document_ids, document_mask)]
        embeddings = [query_embeddings, document_embeddings]
        if negative_ids is not None and negative_mask is not None:
            texts.append((negative_ids.flatten(0, 1), negative_mask.flatten(0, 1)))
        if negative_embeddings is not None:
            embeddings.append(negative_embeddings.flatten(0, 1))
        return self.pairwise.judged(embeddings, texts)


def repeated(texts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return which documents are right for a query although they are not its own.

    Args:
        texts: ids and masks of the queries, of their documents, perhaps of more documents.

    Returns:
        Of shape ``(queries, documents)``.
    """
    queries, own, *more = texts
    same = _same(queries, queries) | _same(own, own)
    same = same & ~torch.eye(same.shape[0], dtype=torch.bool, device=same.device)
    return torch.cat([same, *(_same(own, it) for it in more)], 1)


def _same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return whether texts are equal, each of LEFT and each of RIGHT."""
    one, other = ((ids + 1) * mask for ids, mask in (left, right))
    wide = functional.pad(one, (0, other.shape[1])), functional.pad(other, (0, one.shape[1]))
    return (wide[0].unsqueeze(1) == wide[1].unsqueeze(0)).all(-1)


def info_nce(scores: Tensor, others: Tensor, *, symmetric: bool) -> Tensor:
    """Return the mean cross entropy of each query's own document, and SYMMETRIC of its own query.

    van den Oord et al. 2018, equation 4.
    """
    count = scores.shape[0]
    own = torch.arange(count, device=scores.device)
    known = scores.masked_fill(others, -torch.inf)
    rows = functional.cross_entropy(known, own)
    if not symmetric:
        return rows
    return (rows + functional.cross_entropy(known[:, :count].T, own)) / 2


def hinge(scores: Tensor, others: Tensor, margin: float) -> Tensor:
    """Return the mean over all documents of how much less than MARGIN a query's own scores above one.

    Weston and Watkins 1999; ``torch.nn.functional.multi_margin_loss``.
    """
    own = scores.diagonal().unsqueeze(1)
    missing = (margin - own + scores).clamp(min=0).masked_fill(others, 0.0)
    itself = torch.eye(scores.shape[0], scores.shape[1], device=scores.device) > 0
    return missing.masked_fill(itself, 0.0).mean()
