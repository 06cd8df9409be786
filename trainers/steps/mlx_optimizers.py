"""Optimizers of MLX with PyTorch's arithmetic: MLX's own where they agree, and the others here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import mlx.core as mx
from mlx import optimizers
from mlx.utils import tree_flatten

from ..configuration.updates import OptimizerSection
from .groups import NEWTON_SCHULZ, Group, grouped, shape_factor

State = dict[str, Any]


class Optimizers:
    """The optimizers of all groups of parameters, as one.

    Args:
        settings: the section of the configuration.
        parameters: by name.
    """

    def __init__(self, settings: OptimizerSection, parameters: Mapping[str, mx.array]) -> None:
        shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        self._parts: list[tuple[Group, Any]] = []
        for group in grouped(settings, shapes):
            optimizer = _MADE[group.settings.name](group.settings)
            optimizer.init({name: parameters[name] for name in group.names})
            self._parts.append((group, optimizer))

    @property
    def state(self) -> Any:
        """What the optimizers keep, in containers that stay the same."""
        states = [optimizer.state for _, optimizer in self._parts]
        return states[0] if len(states) == 1 else states

    def set_rate(self, learning_rate: float) -> None:
        """Set the LEARNING_RATE of the run, which each group multiplies by its factor."""
        for group, optimizer in self._parts:
            optimizer.learning_rate = learning_rate * group.factor

    def apply(
        self,
        gradients: Mapping[str, mx.array],
        parameters: Mapping[str, mx.array],
        finite: mx.array | None = None,
    ) -> dict[str, mx.array]:
        """Return the updated PARAMETERS by name; where not FINITE they and what is kept of them stay."""
        updated: dict[str, mx.array] = {}
        for group, optimizer in self._parts:
            own = {name: gradients[name] for name in group.names}
            updated |= _applied(optimizer, own, parameters, finite)
        return updated


def _applied(
    optimizer: Any,
    gradients: Mapping[str, mx.array],
    parameters: Mapping[str, mx.array],
    finite: mx.array | None,
) -> dict[str, mx.array]:
    old: Any = dict(tree_flatten(optimizer.state))
    own = isinstance(optimizer, Adam)
    if own:
        optimizer.finite = finite
    updated: dict[str, mx.array] = optimizer.apply_gradients(gradients, parameters)
    if finite is None:
        return updated
    if own:
        optimizer.state["step"] = mx.where(finite, optimizer.step, old["step"])
        return updated
    fill(optimizer.state, chosen(finite, dict(tree_flatten(optimizer.state)), old))
    return chosen(finite, updated, parameters)


class Own(optimizers.Optimizer):
    """An optimizer by the settings of its section."""

    def __init__(self, settings: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._settings = settings
        self._maybe_schedule("learning_rate", settings.learning_rate)


class Adam(Own):
    """Adam and AdamW, with the correction ``1 - beta ** t`` exact.

    In float32 ``1 - 0.999 ** t`` loses four digits at t = 1; ``-expm1(t * log(beta))`` loses none.
    What is not finite is left out here, since compiled it is then one kernel for all that is computed.
    """

    finite: mx.array | None = None

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Begin with moments of zero."""
        state["m"], state["v"] = mx.zeros_like(parameter), mx.zeros_like(parameter)

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """Return the updated PARAMETERS by name."""
        first, second = self._settings.betas
        step = (self.step + 1).astype(mx.float32)
        rate = computed_once(self.learning_rate / _correction(first, step))
        self._factors = rate, computed_once(mx.rsqrt(_correction(second, step)))
        return super().apply_gradients(gradients, parameters)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """Return the updated PARAMETER and keep the moments in STATE."""
        settings, dtype, before = self._settings, gradient.dtype, parameter
        decay = self.learning_rate.astype(dtype) * settings.weight_decay
        if settings.name == "adam":
            gradient = gradient + settings.weight_decay * parameter
        else:
            parameter = parameter * (1 - decay)
        first, second = settings.betas
        state["m"] = self._new(first * state["m"] + (1 - first) * gradient, state["m"])
        square = (1 - second) * mx.square(gradient)
        state["v"] = self._new(second * state["v"] + square, state["v"])
        rate, root = (it.astype(dtype) for it in self._factors)
        mean, spread = state["m"] * rate, mx.sqrt(state["v"]) * root
        return self._new(parameter - mean / (spread + settings.eps), before)

    def _new(self, new: mx.array, old: mx.array) -> mx.array:
        return new if self.finite is None else mx.where(self.finite, new, old)


class SGD(optimizers.SGD):
    """MLX's, which keeps nothing without momentum."""

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Begin with a velocity of zero."""
        if self.momentum > 0:
            super().init_single(parameter, state)


class Adafactor(Own):
    """PyTorch's ``torch.optim.Adafactor``; MLX's own has another learning rate and other means."""

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Begin with second moments of zero: of rows and columns, or of each number of a vector."""
        if parameter.ndim < 2:
            state["variance"] = mx.zeros_like(parameter)
            return
        *leading, rows, columns = parameter.shape
        state["row_var"] = mx.zeros((*leading, rows, 1), parameter.dtype)
        state["col_var"] = mx.zeros((*leading, 1, columns), parameter.dtype)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """Return the updated PARAMETER and keep the second moments in STATE."""
        settings, step = self._settings, self.step.astype(mx.float32)
        share, rate = step**settings.beta2_decay, self.learning_rate.astype(mx.float32)
        least, smallest = settings.eps
        scale = mx.maximum(smallest, _root_mean_square(parameter))
        size = scale * mx.minimum(rate, mx.rsqrt(step))
        update = mx.rsqrt(mx.maximum(_second_moment(gradient, state, share, least), least**2))
        update = update * gradient
        bound = mx.maximum(1.0, _root_mean_square(update) / settings.d)
        decayed: mx.array = parameter * (1 - rate * settings.weight_decay)
        return decayed - (size / bound) * update


class Muon(Own):
    """PyTorch's ``torch.optim.Muon`` in the parameters' dtype; MLX's own adds the decay to the gradient."""

    def init_single(self, parameter: mx.array, state: State) -> None:
        """Begin with a momentum of zero."""
        state["momentum_buffer"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: State) -> mx.array:
        """Return the updated PARAMETER and keep the momentum in STATE."""
        settings, rate = self._settings, self.learning_rate.astype(gradient.dtype)
        share = settings.momentum
        state["momentum_buffer"] = kept = share * state["momentum_buffer"] + (1 - share) * gradient
        update: mx.array = share * kept + (1 - share) * gradient if settings.nesterov else kept
        scaled = rate * shape_factor(parameter.shape, settings.adjust)
        step: mx.array = scaled * _orthogonal(update, settings.ns_steps, settings.eps)
        updated: mx.array = parameter * (1 - rate * settings.weight_decay) - step
        return updated


def _orthogonal(matrix: mx.array, steps: int, eps: float) -> mx.array:
    """Return about U V^T of MATRIX = U S V^T by Newton and Schulz's iteration."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / mx.maximum(mx.linalg.norm(wide), eps)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * (gram @ gram)) @ wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


def _second_moment(gradient: mx.array, state: State, share: mx.array, least: float) -> mx.array:
    """Return the average of squares of GRADIENT so far, after taking it into STATE with weight SHARE."""

    def kept(name: str, new: mx.array) -> mx.array:
        average: mx.array = state[name] + share * (new - state[name])
        state[name] = average
        return average

    squares = mx.square(gradient)
    if gradient.ndim < 2:
        return kept("variance", squares)
    rows = kept("row_var", squares.mean(axis=-1, keepdims=True))
    columns = kept("col_var", squares.mean(axis=-2, keepdims=True))
    return (rows * columns) / mx.maximum(rows.mean(axis=-2, keepdims=True), least)


def _root_mean_square(array: mx.array) -> mx.array:
    return mx.sqrt(mx.square(array).mean())


def chosen(
    finite: mx.array, new: Mapping[str, mx.array], old: Mapping[str, mx.array]
) -> dict[str, mx.array]:
    """Return NEW where FINITE, else OLD, by name."""
    return {name: mx.where(finite, value, old[name]) for name, value in new.items()}


def fill(tree: Any, values: dict[str, mx.array], prefix: str = "") -> None:
    """Set the leaves of TREE in place: a compiled function holds on to its containers."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        name = f"{prefix}{key}"
        if isinstance(value, dict | list):
            fill(value, values, f"{name}.")
        else:
            tree[key] = values[name]


def computed_once(number: mx.array) -> mx.array:
    """Return the NUMBER; ``mx.compile`` would compute its steps again for every element that it meets.

    It joins them with the elementwise steps after them, but no sum.
    """
    return mx.sum(mx.stack([number, mx.zeros_like(number)]))


def _correction(beta: float, step: mx.array) -> mx.array:
    """Return 1 - beta ** step."""
    return mx.array(1.0) if beta == 0 else -mx.expm1(step * math.log(beta))


def _sgd(settings: Any) -> SGD:
    return SGD(
        settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov and settings.momentum > 0,
    )


def _lion(settings: Any) -> optimizers.Lion:
    return optimizers.Lion(settings.learning_rate, [*settings.betas], settings.weight_decay)


_MADE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "adam": Adam,
    "adamw": Adam,
    "sgd": _sgd,
    "lion": _lion,
    "adafactor": Adafactor,
    "muon": Muon,
}
