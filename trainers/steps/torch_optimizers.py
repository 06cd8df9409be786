"""Optimizers of PyTorch: its own, and those that it has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ...converters.values import Array
from ..configuration.updates import OptimizerSection
from .base import OPTIMIZER
from .groups import NEWTON_SCHULZ, Group, grouped, shape_factor


class Optimizers:
    """The optimizers of all groups of parameters, as one.

    Args:
        settings: the section of the configuration.
        parameters: by name.
    """

    def __init__(self, settings: OptimizerSection, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        self._parts: list[tuple[Group, torch.optim.Optimizer]] = []
        for group in grouped(settings, shapes):
            own = [parameters[name] for name in group.names]
            self._parts.append((group, _MADE[group.settings.name](own, group.settings)))
        self._owner = {name: it for group, it in self._parts for name in group.names}
        self._begin()

    def step(self, learning_rate: float) -> None:
        """Update all parameters by their gradients, at the LEARNING_RATE of the run."""
        for group, optimizer in self._parts:
            optimizer.param_groups[0]["lr"] = learning_rate * group.factor
            optimizer.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return what the optimizers keep, by kind and parameter; updates write over it."""
        return {
            f"{OPTIMIZER}{kind}/{name}": value
            for name in self._parameters
            for kind, value in self._kept(name).items()
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Array]) -> None:
        """Go back to what ``state`` returned."""
        for name in self._parameters:
            for kind, value in self._kept(name).items():
                value.copy_(torch.from_numpy(np.array(state[f"{OPTIMIZER}{kind}/{name}"])))

    def _kept(self, name: str) -> dict[str, Tensor]:
        kept = self._owner[name].state[self._parameters[name]]
        return {kind: value for kind, value in kept.items() if isinstance(value, Tensor)}

    @torch.no_grad()
    def _begin(self) -> None:
        """Let the optimizers make their state now, all of it zero, as it is before the first update."""
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        self.step(0.0)
        self.zero_grad()
        for name in self._parameters:
            for value in self._kept(name).values():
                value.zero_()


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, algorithm 2), which PyTorch has not."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every parameter by the sign of an average of its gradients."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                kept = self.state[parameter].setdefault("m", torch.zeros_like(parameter))
                sign = (first * kept + (1 - first) * parameter.grad).sign()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * sign)
                kept.mul_(second).add_((1 - second) * parameter.grad)


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` in the parameters' own dtype: PyTorch's rounds to bfloat16 on the way."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every matrix by the orthogonal part of an average of its gradients."""
        for group in self.param_groups:
            share, rate = group["momentum"], group["lr"]
            for parameter in group["params"]:
                kept = self.state[parameter].setdefault(
                    "momentum_buffer", torch.zeros_like(parameter)
                )
                kept.lerp_(parameter.grad, 1 - share)
                update = parameter.grad.lerp(kept, share) if group["nesterov"] else kept
                update = _orthogonal(update, group["ns_steps"], group["eps"])
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.sub_(rate * shape_factor(parameter.shape, group["adjust"]) * update)


def _orthogonal(matrix: Tensor, steps: int, eps: float) -> Tensor:
    """Return about U V^T of MATRIX = U S V^T by Newton and Schulz's iteration."""
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / wide.norm().clamp(min=eps)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * (gram @ gram)) @ wide
    found: Tensor = wide.T if matrix.shape[0] > matrix.shape[1] else wide
    return found


def _with(kind: Any, *keys: str) -> Callable[[Any, Any], torch.optim.Optimizer]:
    """Return what makes an optimizer of KIND from the settings KEYS."""

    def make(parameters: Any, settings: Any) -> torch.optim.Optimizer:
        own = {key: getattr(settings, key) for key in ("weight_decay", *keys)}
        made: torch.optim.Optimizer = kind(parameters, lr=settings.learning_rate, **own)
        return made

    return make


def _sgd(parameters: Any, settings: Any) -> torch.optim.Optimizer:
    nesterov = settings.nesterov and settings.momentum > 0
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=nesterov,
    )


_MADE: Final[Mapping[str, Callable[[Any, Any], torch.optim.Optimizer]]] = {
    "adam": _with(torch.optim.Adam, "betas", "eps"),
    "adamw": _with(torch.optim.AdamW, "betas", "eps"),
    "sgd": _sgd,
    "lion": _with(Lion, "betas"),
    "adafactor": _with(torch.optim.Adafactor, "beta2_decay", "eps", "d"),
    "muon": _with(Muon, "momentum", "nesterov", "ns_steps", "eps", "adjust"),
}
