"""The modules of a task in torch, to be trained: copies, with the low-rank adapters of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...converters.common.users_code import deep_copied
from ...converters.quantization import Blocks
from ...converters.quantization.kept import Grid, grid_of
from ...converters.values import LowRank
from ..adapters import in_out

if TYPE_CHECKING:
    from ..tasks import Task

NONE: Mapping[str, Blocks] = MappingProxyType({})


def modules_of(task: Task) -> tuple[Any, Any]:
    """Return the loss of TASK and what its evaluation runs, around one model with the adapters of TASK.

    They are copies, which lie in the memory of TASK's own where they are frozen.
    """
    own: Any = task.loss, task.evaluated
    shared = {
        id(it): nn.Parameter(it.detach(), requires_grad=False)
        for it in (*task.loss.parameters(), *task.evaluated.parameters())
        if not it.requires_grad
    }
    try:
        loss, evaluated = deep_copied(own, own, shared)
    except Exception:  # whatever Python cannot copy
        loss, evaluated = _made_again(task)
    attach_adapters(loss.model, task.updates, task.grids.blocks)
    return loss, evaluated


def _made_again(task: Task) -> tuple[Any, Any]:
    """Return the modules of TASK made once more, around a copy of its model, with the values of its own."""
    objective, model = task.objective, copy.deepcopy(task.module)
    loss = objective.make_loss(model)
    evaluated = objective.make_evaluated(model) if objective.make_evaluated else loss
    for new, old in ((loss, task.loss), (evaluated, task.evaluated)):
        new.load_state_dict(old.state_dict())
        for name, it in old.named_parameters():
            new.get_parameter(name).requires_grad_(it.requires_grad)
    return loss, evaluated


def attach_adapters(
    model: nn.Module, updates: Mapping[str, LowRank], grids: Mapping[str, Blocks] = NONE
) -> None:
    """Let ``model.<module>`` return ``y + scale * (x @ lora_a) @ lora_b``, both trainable.

    Where a weight lies ``[in, out]`` it is ``(x @ lora_b.T) @ lora_a.T``.
    With DoRA the rows of the weight and its update are scaled to the lengths ``lora_m``, their own
    lengths counting as a constant of the gradient (Liu et al. 2024, section 4.3). Where there is a
    grid, of GRIDS by weight, the module computes with the sum rounded to it, and gradients pass the
    rounding as if there were none.
    """
    for name, update in updates.items():
        module = model.get_submodule(name.removesuffix(".weight"))
        module.lora_a = nn.Parameter(torch.tensor(update.a.T.copy()))
        module.lora_b = nn.Parameter(torch.tensor(update.b.T.copy()))
        if update.magnitude is not None:
            module.lora_m = nn.Parameter(torch.tensor(update.magnitude.copy()))
        if name in grids:
            Rounded.of(module, update.scale, grids[name])
        else:
            module.register_forward_hook(_adapter_hook(update.scale))


def rounded_parameters(model: nn.Module, grids: Mapping[str, Blocks]) -> set[int]:
    """Return the ids of the parameters whose sums are rounded to GRIDS: in 16 bits they would be others."""
    modules = [model.get_submodule(name.removesuffix(".weight")) for name in grids]
    return {
        id(it) for module in modules for name, it in module.named_parameters() if name != "bias"
    }


def _adapter_hook(scale: float) -> Callable[[Any, tuple[Tensor, ...], Tensor], Tensor]:
    def add(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        down, up = module.lora_a, module.lora_b
        if in_out(module):
            down, up = up.T, down.T
        update: Tensor = scale * ((inputs[0] @ down) @ up)
        if not hasattr(module, "lora_m"):
            return output + update
        bias = 0 if module.bias is None else module.bias
        scaled: Tensor = (output - bias + update) * _factor(module, scale) + bias
        return scaled

    return add


def _factor(module: Any, scale: float) -> Tensor:
    """Return what DoRA multiplies the rows of the sum of a weight and its update by."""
    with torch.no_grad():
        whole = module.weight + scale * (module.lora_a @ module.lora_b).T
    factor: Tensor = module.lora_m / whole.norm(dim=1)
    return factor


class Rounded(nn.Linear):
    """A linear layer that computes with the sum of its weight and update at the nearest values of a grid."""

    grid: Grid
    scale: float

    @classmethod
    def of(cls, module: Any, scale: float, blocks: Blocks) -> None:
        """Let the linear MODULE be one, of SCALE and the grid of BLOCKS."""
        worth, scales, values = map(torch.from_numpy, grid_of(blocks).narrow()[:3])
        module.__class__ = cls
        module.scale, module.grid = scale, Grid(worth, scales, values, blocks.scheme)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (as torch calls it)
        """Return what the layer computes; the gradient of the weight is that of the sum."""
        own: Any = self
        wanted = self.weight + self.scale * (own.lora_a @ own.lora_b).T
        if hasattr(self, "lora_m"):
            wanted = wanted * _factor(self, self.scale)[:, None]
        worth, scales, values = (it.to(wanted) for it in self.grid[:3])
        grid = Grid(worth, scales, values, self.grid.scheme)
        weight = grid.rounded(wanted.detach(), torch) + (wanted - wanted.detach())
        return nn.functional.linear(input, weight.to(input.dtype), self.bias)
