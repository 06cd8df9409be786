"""Losses of one embedding for each text: InfoNCE, margin, triplet."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .pairwise import Pairwise, hinge, info_nce


class Contrastive(Pairwise):
    """InfoNCE of the scores divided by TEMPERATURE, SYMMETRIC in both directions."""

    def __init__(self, model: nn.Module, temperature: float, symmetric: bool = True) -> None:
        super().__init__(model)
        self.temperature, self.symmetric = temperature, symmetric

    def loss(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the loss of SCORES."""
        return info_nce(scores / self.temperature, others, symmetric=self.symmetric)


class Margin(Pairwise):
    """Every document but a query's own has to be MARGIN further away than that one."""

    def __init__(self, model: nn.Module, margin: float) -> None:
        super().__init__(model)
        self.margin = margin

    def loss(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the loss of SCORES."""
        return hinge(scores, others, self.margin)


class Triplet(Margin):
    """A query's ``negative_*`` have to be MARGIN further away than its own document.

    Schroff et al. 2015, equation 2, by cosine or Euclidean distance. The loss of a split, where
    there are none, takes all other documents for them.
    """

    optional: ClassVar = frozenset()

    def __init__(self, model: nn.Module, margin: float, distance: str) -> None:
        super().__init__(model, margin)
        self.distance = distance

    def loss(self, scores: Tensor, others: Tensor) -> Tensor:
        """Return the loss of SCORES."""
        count, documents = scores.shape
        far = 1 - scores
        if self.distance == "euclidean":  # of unit vectors
            far = (2 * far).clamp(min=1e-12).sqrt()
        missing = (self.margin + far.diagonal().unsqueeze(1) - far).clamp(min=0)
        rows, columns = torch.arange(count).unsqueeze(1), torch.arange(documents).unsqueeze(0)
        if documents > count:
            each = (documents - count) // count
            counted = (columns >= count) & ((columns - count) // each == rows)
        else:
            counted = columns != rows
        counted = counted & ~others
        return missing.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)
