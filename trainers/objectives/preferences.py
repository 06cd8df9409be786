"""Direct preference optimisation: the answer that was chosen becomes likelier than the one that was not."""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.batches import Dataset
from ..evaluation import Scores, figures, found_by
from ..steps.base import Step
from .outputs import logits_of, run
from .tokens import next_tokens, surprises


class Rewards(nn.Module):
    """By how much a model prefers both answers to what it did at the start, as logarithms of probabilities.

    The reference is the model as it was given: without its adapters, which begin at zero. What is frozen in
    the model it shares, and of the rest it has copies.
    """

    dynamic: ClassVar = {
        f"{answer}_{part}": {0: "batch", 1: answer}
        for answer in ("chosen", "rejected")
        for part in ("ids", "mask", "labels")
    }

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        shared = {id(it): _frozen(it) for it in model.parameters() if not it.requires_grad}
        self.reference = copy.deepcopy(model, shared).eval().requires_grad_(False)

    def forward(self, **answers: Tensor) -> Tensor:
        """Return the logarithms of the ratios for the chosen and the rejected, shape ``(batch, 2)``."""
        both = [
            self._gained(*(answers[f"{name}_{part}"] for part in ("ids", "mask", "labels")))
            for name in ("chosen", "rejected")
        ]
        return torch.stack(both, 1)

    def _gained(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return how much likelier the LABELS are than for the reference."""
        with torch.no_grad():
            before = _surprise(self.reference, ids, mask, labels)
        return before - _surprise(self.model, ids, mask, labels)


class DPO(Rewards):
    """``-log sigmoid(beta * (chosen - rejected))`` of the rewards (Rafailov et al. 2023, equation 7)."""

    evaluated = Rewards
    evaluated_dynamic = Rewards.dynamic
    metric = "reward_accuracy"
    higher_is_better = True

    def __init__(self, model: nn.Module, beta: float) -> None:
        super().__init__(model)
        self.beta = beta

    def forward(self, **answers: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        chosen, rejected = super().forward(**answers).unbind(1)
        return -functional.logsigmoid(self.beta * (chosen - rejected)).mean()

    @staticmethod
    @figures("loss", "reward_accuracy", "reward_margin")
    def measure(step: Step, dataset: Dataset, size: int, beta: float) -> Scores:
        """Return the loss, how often the chosen has the higher reward, and by how much it has."""
        rewards = beta * found_by(step, dataset, size)
        margins = rewards[:, 0] - rewards[:, 1]
        right = (margins > 0) * 1.0
        figures = {
            "loss": np.logaddexp(0, -margins),
            "reward_accuracy": right,
            "reward_margin": margins,
        }
        means = {name: float(np.mean(each)) for name, each in figures.items()}
        return Scores(means, "reward_accuracy", right)


def _frozen(parameter: nn.Parameter) -> nn.Parameter:
    """Return another parameter in the memory of PARAMETER, so that an adapter of one is not the other's."""
    return nn.Parameter(parameter.detach(), requires_grad=False)


def _surprise(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    logits = logits_of(run(model, {"ids": ids, "mask": mask}))
    return surprises(logits, next_tokens(labels)).sum(1)
