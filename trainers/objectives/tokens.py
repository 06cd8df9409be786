"""Language models: the next token, or tokens that were hidden."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.batches import Batch
from ..evaluation import measure_tokens
from .base import IGNORED, labels
from .outputs import logits_of, run


def surprises(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``logsumexp(logits) - logits[label]`` where LABELS are not -100, and 0 elsewhere.

    What torch's cross entropy is a mean of, without the logarithms of all probabilities: of a large
    vocabulary, the logits exist once in float32, and not a second time.

    Args:
        logits: shape ``(batch, sequence, vocabulary)``, of any floating dtype.
        labels: ids, shape ``(batch, sequence)``.

    Returns:
        Minus the logarithms of probabilities, shape ``(batch, sequence)``.
    """
    counts = labels != IGNORED
    wide = torch.promote_types(logits.dtype, torch.float32)
    chosen = logits.gather(-1, labels.where(counts, 0).unsqueeze(-1)).squeeze(-1)
    return (logits.to(wide).logsumexp(-1) - chosen.to(wide)).where(counts, 0.0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of :func:`surprises` over the LABELS that count, 0 where none does."""
    return surprises(logits, labels).sum() / (labels != IGNORED).sum().clamp(min=1)


def next_tokens(labels: Tensor) -> Tensor:
    """Return the label of the next position for each; the last has none."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def next_labels(batch: Batch) -> float:
    """Return the number of ``labels`` that count and have a token before them."""
    return float(np.count_nonzero(batch.inputs["labels"][:, 1:] != IGNORED))


class MaskedLM(nn.Module):
    """The loss of the tokens that were hidden: those whose label is not -100."""

    dynamic: ClassVar = {name: {0: "batch", 1: "sequence"} for name in ("ids", "mask", "labels")}
    weight = staticmethod(labels)
    measure = staticmethod(measure_tokens)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        logits = logits_of(run(self.model, {"ids": ids, "mask": mask}))
        return cross_entropy(logits, self.answers(labels))

    @staticmethod
    def answers(labels: Tensor) -> Tensor:
        """Return the label of every position's logits."""
        return labels


class CausalLM(MaskedLM):
    """The loss of every token whose label is not -100, found from those before it."""

    weight = staticmethod(next_labels)

    answers = staticmethod(next_tokens)
