"""Classes of texts or series: one of several for each example, or any number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from ...converters.captures.modes import in_mode
from ...converters.values import Array
from ..data.batches import Batch, Dataset
from ..evaluation import in_slices, measure_classes, without_answers
from .base import IGNORED
from .outputs import Prediction, Supervised, looked_at


def labelled(batch: Batch) -> float:
    """Return the number of examples that have a label."""
    labels = batch.inputs["labels"]
    return float(batch.rows if labels.ndim > 1 else np.count_nonzero(labels != IGNORED))


class Classification(Supervised):
    """Cross entropy of ``labels``.

    Labels of shape ``(batch,)`` are the one class of each example, or -100 where there is none; of
    shape ``(batch, classes)`` they are 1 for every class that an example has: each is a question of
    its own then (binary cross entropy of the logits). One logit means class 1 against class 0.
    """

    wanted: ClassVar = ("labels",)
    metric = "accuracy"
    higher_is_better = True
    weight = staticmethod(labelled)
    measure = staticmethod(measure_classes)

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean over the labels that count."""
        if wanted.ndim > 1:
            return functional.binary_cross_entropy_with_logits(found, wanted.to(found.dtype))
        if found.shape[-1] > 1:
            return functional.cross_entropy(found, wanted.long(), ignore_index=IGNORED)
        counts = wanted != IGNORED
        answers = wanted.where(counts, 0).to(found.dtype)
        each = functional.binary_cross_entropy_with_logits(found[:, 0], answers, reduction="none")
        return each.where(counts, 0.0).sum() / counts.sum()

    @staticmethod
    def check(model: Any, splits: Mapping[str, Dataset]) -> list[str]:
        """Return where a label is none of the classes that MODEL has, or what the data says of their number."""
        data = next(iter(splits.values()))
        classes = _classes(model, data)
        problems: list[str] = getattr(data, "misfits", lambda _: [])(max(classes, 2))
        if problems:
            return problems
        found = {name: _first_bad(split, classes) for name, split in splits.items()}
        range_of = f"0 to {max(classes, 2) - 1}"
        return [
            f"{name}: example {bad[0]} has the label {bad[1]}, and the model has the classes {range_of}"
            for name, bad in found.items()
            if bad
        ]


def _classes(model: nn.Module, dataset: Dataset) -> int:
    """Return how many logits MODEL gives for an example of DATASET; nothing of it changes.

    Raises:
        BadInputError: it cannot take one.
    """
    inputs = without_answers(dataset.batch([0]).inputs)
    with in_mode(model, False), looked_at(inputs) as tensors:  # batch statistics stay
        return int(Prediction(model)(**tensors).shape[-1])


def _first_bad(dataset: Dataset, classes: int) -> tuple[int, Any] | None:
    """Return the first example whose label is no class, and what it is."""
    for rows in in_slices(len(dataset), 1024):
        bad = _bad(dataset.batch(rows).inputs["labels"], classes)
        if bad.any():
            at = int(np.argmax(bad))
            return rows[at], dataset.batch([rows[at]]).inputs["labels"][0].tolist()
    return None


def _bad(labels: Array, classes: int) -> Array:
    """Return for every example of LABELS whether it is none that a model of CLASSES logits takes."""
    if labels.ndim > 1:
        wrong = (labels < 0) | (labels > 1)
        return np.asarray(wrong.any(1) | (labels.shape[1] != classes))
    known = (labels >= 0) & (labels < max(classes, 2)) & (labels == np.floor(labels))
    return np.asarray(~(known | (labels == IGNORED)))
