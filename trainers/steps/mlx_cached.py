"""Loss and gradient of a batch chunk by chunk in MLX; see ``cached.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_map

from ...converters.captures import capture
from ...converters.captures.modes import in_mode
from ...converters.values import Array
from ..checks.decisions import require_held
from ..ranks import ALONE, Ranks
from ..tasks import Task
from .base import Arrays, example_of
from .cached import differentiate, embedded, varying


class MlxCached:
    """Loss and gradient of MODEL, the captured module that makes embeddings, in eval mode.

    Args:
        model: as ``capture_embedding`` returns it.
        task: whose loss it is.
        chunk: texts embedded at once.
        scale: returns what the loss is multiplied by before it is differentiated.
    """

    def __init__(self, model: Any, task: Task, chunk: int, scale: Callable[[], mx.array]) -> None:
        self._model, self._chunk, self._scale = model, chunk, scale
        self._judge = self._capture(task)
        self.build(lambda function: function)

    def build(self, wrap: Callable[[Any], Any]) -> None:
        """Set the functions of an update; WRAP compiles one, or returns it as it is."""
        self._forward: Any = wrap(self._embed)
        self._backward: Any = wrap(nn.value_and_grad(self._model, self._product))
        self._differentiate: Any = wrap(mx.value_and_grad(self._scaled))

    def loss(self, inputs: Arrays) -> mx.array:
        """Return the loss of a batch."""
        found = self._judge(**_feed(embedded(inputs, self._chunk, self._numbers)), **_feed(inputs))
        loss: mx.array = found.astype(mx.float32)
        return loss

    def gradient(
        self, inputs: Arrays, ranks: Ranks = ALONE
    ) -> tuple[tuple[mx.array, mx.array], Any]:
        """Return the loss of a batch times its scale and the loss, and the gradient of the former.

        Of several RANKS it is the mean of theirs.
        """
        total: Any = tree_map(mx.zeros_like, self._model.trainable_parameters())

        def add(part: Arrays, gradient: Array) -> None:
            nonlocal total
            _, found = self._backward(_feed(part), mx.array(gradient))
            total = tree_map(mx.add, total, found)
            mx.eval(total)

        loss = mx.array(differentiate(inputs, self._chunk, self._numbers, self._judged, add, ranks))
        return (loss * self._scale(), loss), total

    def _numbers(self, part: Arrays) -> Array:
        found = np.array(self._forward(_feed(part)))
        require_held(self._model, part, found)
        return found

    def _embed(self, part: dict[str, mx.array]) -> mx.array:
        embeddings: mx.array = self._model(**part).astype(mx.float32)
        return embeddings

    def _product(self, part: dict[str, mx.array], gradient: mx.array) -> mx.array:
        """Return what has the gradient of the loss, where GRADIENT is that of the embeddings."""
        return (self._embed(part) * gradient).sum()

    def _scaled(
        self, made: dict[str, mx.array], inputs: dict[str, mx.array]
    ) -> tuple[mx.array, mx.array]:
        loss = self._judge(**made, **inputs).astype(mx.float32)
        return loss * self._scale(), loss

    def _judged(self, made: Arrays, inputs: Arrays) -> tuple[float, Arrays]:
        (_, loss), gradients = self._differentiate(_feed(made), _feed(inputs))
        return float(np.array(loss)), {name: np.array(it) for name, it in gradients.items()}

    def _capture(self, task: Task) -> Any:
        """Return the captured loss of embeddings."""
        objective = task.objective
        inputs = example_of(task.splits["train"]).inputs
        made = embedded(inputs, self._chunk, lambda part: np.array(self._embed(_feed(part))))
        return capture(
            objective.make_from_embeddings(),  # type: ignore[misc]  # refused before
            inputs={**inputs, **made},
            dynamic=varying(objective.dynamic or {}, made),
            modes="one",
        )


def capture_embedding(task: Task, compute: str, *, training: bool) -> Any:
    """Return the captured module that embeds the texts of TASK, computing in COMPUTE."""
    objective = task.objective
    inputs = example_of(task.splits["train"]).inputs
    example = {part: inputs[f"query_{part}"] for part in ("ids", "mask")}
    with in_mode(task.evaluated, training) as module:
        return capture(
            module,
            inputs=example,
            dynamic=objective.evaluated_dynamic,
            modes="one",
            compute=compute,
        )


def _feed(inputs: Arrays) -> dict[str, mx.array]:
    return {name: mx.array(value) for name, value in inputs.items()}
