"""One update in MLX: the captured computation, compiled whole, its loss read one step late."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

from ...converters.captures import capture
from ...converters.values import Array
from ..config import TrainConfig
from ..data.batches import Batch
from ..tasks import PREFIX, Task
from .adamw import AdamW
from .base import Arrays, Measures
from .compiler import compile_problem

EXAMPLE_ROWS = 3  # of the batch that is captured: no other size of it is likely to be three


class MlxStep:
    """A task under training in MLX; see :class:`~.base.Step`.

    Attributes:
        notice: why the step is not compiled, if it is not.
    """

    backend = "mlx"

    def __init__(self, task: Task, config: TrainConfig) -> None:
        compiled, self.notice = _compiler(config.compile)
        example = task.splits["train"].batch(range(EXAMPLE_ROWS))
        self._task = task
        self.model = self._capture(task.objective.make_loss, example.inputs, task.objective.dynamic)
        self._evaluated: Any = None
        settings = config.optimizer
        self._optimizer = AdamW(
            learning_rate=settings.learning_rate,
            betas=list(settings.betas),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self._optimizer.init(self.model.trainable_parameters())
        self._limit = config.clip_norm if config.clip_norm is not None else float("inf")
        mx.random.seed(config.seed)
        self._differentiate: Any = nn.value_and_grad(self.model, self._call)
        self._build(compiled=compiled)

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Start one update; several batches are evaluated one by one to bound the memory."""
        self._optimizer.learning_rate = learning_rate
        if len(batches) == 1:
            loss, norm = self._update(_feed(batches[0].inputs))
        else:
            loss, norm = self._apply(*self._accumulate(batches))
        mx.async_eval(loss, norm, self.model.trainable_parameters(), self._optimizer.state)
        return lambda: _measures(loss, norm)

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every parameter that MLX would train."""
        loss, gradients = self._differentiate(_feed(batch.inputs))
        return _number(loss), _flat(gradients)

    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch."""
        return _number(self._call(_feed(inputs)))

    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes."""
        fed = _feed(inputs)
        if self._evaluated is None:
            self._evaluated = self._capture(
                self._task.objective.make_evaluated, inputs, self._task.objective.evaluated_dynamic
            )
        self._evaluated.update(self.model.trainable_parameters())
        return np.array(self._evaluated(**fed))

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        return _flat(self.model.trainable_parameters())

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        weights = [(name, mx.array(value)) for name, value in values.items()]
        self.model.load_weights(weights, strict=False)

    def state(self) -> dict[str, Array]:
        """Return parameters, moments, step count and random state, flat."""
        parameters = {f"parameters/{name}": value for name, value in self.trainable().items()}
        optimizer = {
            f"optimizer/{name}": value for name, value in _flat(self._optimizer.state).items()
        }
        return parameters | optimizer | {"random": np.array(_random_state()[0])}

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        self.assign(_below("parameters/", state))
        moments = _below("optimizer/", state)
        _fill(self._optimizer.state, {name: mx.array(value) for name, value in moments.items()})
        key = state["random"]
        mx.random.seed((int(key[0]) << 32) | int(key[1]))  # the only way to set the key in MLX 0.32

    def peak_memory(self) -> int:
        """Return the most bytes that MLX had in use."""
        return int(mx.get_peak_memory())

    def _capture(self, make: Any, inputs: Arrays, dynamic: Any) -> Any:
        """Capture what MAKE makes of the model, its adapters in place."""
        captured = capture(make(self._task.module), to="mlx", inputs=inputs, dynamic=dynamic)
        if self._task.updates:
            captured.set_adapters(
                {PREFIX + name: update for name, update in self._task.updates.items()}
            )
        return captured

    def _build(self, *, compiled: bool) -> None:
        """Set the functions of an update, compiled with everything that they change."""
        state = [self.model.state, self._optimizer.state, _random_state()]
        wrap = (lambda f: mx.compile(f, inputs=state, outputs=state)) if compiled else (lambda f: f)
        self._update = wrap(self._update_whole)
        self._gradient = wrap(self._differentiate)
        self._apply = wrap(self._apply_gradient)

    def _call(self, inputs: dict[str, mx.array]) -> mx.array:
        loss: mx.array = self.model(**inputs)
        return loss

    def _update_whole(self, inputs: dict[str, mx.array]) -> tuple[mx.array, mx.array]:
        return self._apply_gradient(*self._differentiate(inputs))

    def _apply_gradient(self, loss: mx.array, gradients: Any) -> tuple[mx.array, mx.array]:
        """Clip and update; put everything back where the loss or the gradient is not finite."""
        clipped, norm = optimizers.clip_grad_norm(gradients, self._limit)
        finite = mx.isfinite(loss) & mx.isfinite(norm)
        kept = [
            dict(tree_flatten(part))
            for part in (self.model.trainable_parameters(), self._optimizer.state)
        ]
        self._optimizer.update(self.model, clipped)
        self.model.update(_choose(finite, self.model.trainable_parameters(), kept[0]))
        new = dict(tree_flatten(self._optimizer.state))
        _fill(
            self._optimizer.state,
            {name: mx.where(finite, new[name], old) for name, old in kept[1].items()},
        )
        return loss, norm

    def _accumulate(self, batches: Sequence[Batch]) -> tuple[mx.array, Any]:
        """Return the means of loss and gradient over BATCHES, weighted by their rows."""
        rows = sum(batch.rows for batch in batches)
        total: Any = None
        for batch in batches:
            part = tree_map(
                lambda x, w=batch.rows / rows: x * w, self._gradient(_feed(batch.inputs))
            )
            total = part if total is None else tree_map(mx.add, total, part)
            mx.eval(total)
        return total[0], total[1]


def _compiler(wanted: bool | None) -> tuple[bool, str | None]:
    """Return whether to compile, and why not although it is WANTED."""
    on_linux_cpu = mx.default_device() == mx.Device(mx.cpu) and sys.platform == "linux"
    if wanted is None:
        return mx.default_device() != mx.Device(mx.cpu), None
    problem = compile_problem() if wanted and on_linux_cpu else None
    if problem:
        mx.disable_compile()  # MLX compiles some of its own activations too
    return wanted and not problem, problem


def _random_state() -> Any:
    return mx.random.state  # untyped in the stubs


def _feed(inputs: Arrays) -> dict[str, mx.array]:
    return {name: mx.array(value) for name, value in inputs.items()}


def _measures(loss: mx.array, norm: mx.array) -> Measures:
    numbers = _number(loss), _number(norm)
    return Measures(*numbers, bool(np.isfinite(numbers).all()))


def _number(array: mx.array) -> float:
    return float(np.array(array))


def _flat(tree: Any) -> dict[str, Array]:
    leaves: Any = tree_flatten(tree)
    return {name: np.array(value) for name, value in leaves}


def _below(prefix: str, state: Arrays) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _choose(finite: mx.array, new: Any, kept: dict[str, mx.array]) -> Any:
    """Return NEW where FINITE, else KEPT, in the structure of NEW."""
    from mlx.utils import tree_map_with_path

    return tree_map_with_path(lambda name, value: mx.where(finite, value, kept[name]), new)


def _fill(tree: Any, values: dict[str, mx.array], prefix: str = "") -> None:
    """Set the leaves of TREE in place: a compiled function holds on to its containers."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        name = f"{prefix}{key}"
        if isinstance(value, dict | list):
            _fill(value, values, f"{name}.")
        else:
            tree[key] = values[name]
