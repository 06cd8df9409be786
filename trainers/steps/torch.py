"""One update in PyTorch: the other half of every parity check of a training run."""

from __future__ import annotations

import copy
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...converters.values import Array, LowRank
from ..config import TrainConfig
from ..data.batches import Batch
from ..tasks import Task
from .base import Arrays, Measures


class TorchStep:
    """A task under training in PyTorch on the CPU; see :class:`~.base.Step`.

    Args:
        task: what is trained; its module is copied.
        config: the run.
        dtype: ``float32``, or ``float64`` for a reference.
    """

    backend = "torch"

    def __init__(self, task: Task, config: TrainConfig, dtype: str = "float32") -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)
        model = copy.deepcopy(task.module)
        attach_adapters(model, task.updates)
        self._loss = task.objective.make_loss(model).to(self._dtype)
        make_evaluated = task.objective.make_evaluated or task.objective.make_loss
        self._evaluated = make_evaluated(model)
        self._parameters: dict[str, nn.Parameter] = {
            name: value for name, value in self._loss.named_parameters() if value.requires_grad
        }
        settings = config.optimizer
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self._clip = config.clip_norm
        torch.manual_seed(config.seed)

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Update at once; the measures are there already."""
        rows = sum(batch.rows for batch in batches)
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch in batches:
            loss = self._loss(**self._feed(batch.inputs)) * (batch.rows / rows)
            loss.backward()
            total += loss.item()
        norm = self._clip_gradients()
        measures = Measures(total, norm, bool(np.isfinite(total) and np.isfinite(norm)))
        if measures.finite:
            self._optimizer.param_groups[0]["lr"] = learning_rate
            self._optimizer.step()
        return lambda: measures

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and every gradient; a parameter not in its graph has none."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(**self._feed(batch.inputs))
        loss.backward()
        found = {
            name: value.grad.numpy().copy()
            for name, value in self._loss.named_parameters()
            if value.grad is not None
        }
        self._optimizer.zero_grad(set_to_none=True)
        return loss.item(), found

    @torch.no_grad()
    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch."""
        return float(self._loss(**self._feed(inputs)).item())

    @torch.no_grad()
    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes."""
        return np.asarray(self._evaluated(**self._feed(inputs)).numpy())

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        return {name: value.detach().numpy().copy() for name, value in self._parameters.items()}

    @torch.no_grad()
    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        for name, value in values.items():
            self._parameters[name].copy_(torch.from_numpy(np.array(value)))

    def state(self) -> dict[str, Array]:
        """Return parameters, moments, step counts and random state, flat."""
        state = {f"parameters/{name}": value for name, value in self.trainable().items()}
        for name, value in self._parameters.items():
            for kind, moment in self._optimizer.state.get(value, {}).items():
                state[f"optimizer/{kind}/{name}"] = moment.numpy().copy()
        return state | {"random": torch.get_rng_state().numpy().copy()}

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        prefix = "parameters/"
        parameters = {name: value for name, value in state.items() if name.startswith(prefix)}
        self.assign({name.removeprefix(prefix): value for name, value in parameters.items()})
        self._optimizer.state.clear()
        for name, value in state.items():
            if name.startswith("optimizer/"):
                _, kind, parameter = name.split("/", 2)
                moments = self._optimizer.state[self._parameters[parameter]]
                moments[kind] = torch.from_numpy(np.array(value))
        torch.set_rng_state(torch.from_numpy(np.array(state["random"])))

    def peak_memory(self) -> int:
        """Return the largest resident size of the process in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def _feed(self, inputs: Arrays) -> dict[str, Tensor]:
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        return {
            name: value.to(self._dtype) if value.is_floating_point() else value
            for name, value in tensors.items()
        }

    def _clip_gradients(self) -> float:
        limit = self._clip if self._clip is not None else float("inf")
        return float(nn.utils.clip_grad_norm_(self._parameters.values(), limit).item())


def attach_adapters(model: nn.Module, updates: Mapping[str, LowRank]) -> None:
    """Let ``model.<module>`` return ``y + scale * (x @ lora_a) @ lora_b``, both trainable."""
    for name, update in updates.items():
        module = model.get_submodule(name.removesuffix(".weight"))
        module.lora_a = nn.Parameter(torch.tensor(update.a.T.copy()))
        module.lora_b = nn.Parameter(torch.tensor(update.b.T.copy()))
        module.register_forward_hook(_adapter_hook(update.scale))


def _adapter_hook(scale: float) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
    def add(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        update: Tensor = (inputs[0] @ module.lora_a) @ module.lora_b
        return output + scale * update

    return add
