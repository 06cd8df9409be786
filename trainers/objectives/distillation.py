"""Distillation: a model learns to answer as another one does."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...converters.planning.opening import open as open_model
from ...errors import BadInputError
from ..configuration.opening import naming
from ..data.batches import Batch
from ..evaluation import without_answers
from .base import IGNORED
from .outputs import Prediction, logits_of, run
from .tokens import cross_entropy, next_labels, next_tokens


class Distillation(nn.Module):
    """The distance of the model's logits from the TEACHER's, HARD of the loss being that of ``labels``.

    By ``kl`` it is ``temperature ** 2`` times the Kullback-Leibler divergence of their softmaxes
    (Hinton et al. 2015, section 2), by ``mse`` the mean squared difference of the logits. Of language
    models the positions count whose next label does; where there are no labels, those of the mask.
    """

    evaluated = Prediction

    def __init__(
        self, model: nn.Module, teacher: str, trust_code: str | None = None, **how: Any
    ) -> None:
        super().__init__()
        self.model = model
        self.teacher = teacher_of(teacher, trust_code)
        self.compare: str = how["compare"]
        self.temperature: float = how["temperature"]
        self.hard: float = how["hard"]

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        known = without_answers(inputs)
        found = logits_of(run(self.model, known))
        with torch.no_grad():
            wanted = logits_of(run(self.teacher, known))
        _require_alike(found, wanted)
        each = self._distance(found, wanted)
        labels = inputs.get("labels")
        if found.ndim == 3 and labels is not None:
            labels = next_tokens(labels)
            counts = labels != IGNORED
            soft = each.where(counts, 0.0).sum() / counts.sum().clamp(min=1)
        else:
            soft = _mean(each, inputs.get("mask"))
        if not self.hard or labels is None:
            return soft
        return self.hard * cross_entropy(found, labels.long()) + (1 - self.hard) * soft

    def _distance(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Return the distance of the last axes."""
        if self.compare == "mse":
            return (found - wanted).square().mean(-1)
        ours, theirs = ((it / self.temperature).log_softmax(-1) for it in (found, wanted))
        return (
            functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
            * self.temperature**2
        )

    @staticmethod
    def weight(batch: Batch) -> float:
        """Return what the loss is a mean over: labels of language models, examples of others."""
        inputs = batch.inputs
        texts = {"ids", "labels"} <= inputs.keys() and inputs["ids"].shape == inputs["labels"].shape
        return next_labels(batch) if texts else float(batch.rows)


def teacher_of(spec: str, trust_code: str | None = None) -> nn.Module:
    """Return the model at SPEC, frozen, a copy of its own."""
    with naming("objective.teacher", spec, trust_code):
        return copy.deepcopy(_opened(spec, trust_code))


@lru_cache(maxsize=1)
def _opened(spec: str, trust_code: str | None) -> nn.Module:
    from ...converters.maps.sources.torch_side import with_torch_side
    from ...converters.runtimes.torch import build_module

    module: nn.Module = build_module(with_torch_side(open_model(spec, trust_code=trust_code)))
    return module.eval().requires_grad_(False)


def _require_alike(found: Tensor, wanted: Tensor) -> None:
    """Refuse logits of the model and of its teacher that are not of the same words or classes.

    Raises:
        BadInputError: they are not; one logit would be compared with each of several.
    """
    ours, theirs = ([*it.shape[1:]] for it in (found, wanted))
    if found.ndim != wanted.ndim or ours[-1] != theirs[-1]:
        raise BadInputError(
            f"objective.teacher finds logits of shape (batch, {', '.join(map(str, theirs))}), the model"
            f" (batch, {', '.join(map(str, ours))}); give a teacher with the same head of words or classes"
        )


def _mean(each: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over examples, within one over what MASK leaves of its tokens."""
    if each.ndim < 2 or mask is None:
        return each.mean()
    return ((each * mask).sum(1) / mask.sum(1)).mean()
