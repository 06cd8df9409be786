"""Low-rank adapters of a torch module under training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...converters.quantization import Blocks
from ...converters.quantization.kept import Grid, grid_of
from ...converters.values import LowRank

NONE: Mapping[str, Blocks] = MappingProxyType({})


def attach_adapters(
    model: nn.Module, updates: Mapping[str, LowRank], grids: Mapping[str, Blocks] = NONE
) -> None:
    """Let ``model.<module>`` return ``y + scale * (x @ lora_a) @ lora_b``, both trainable.

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
            cast(Any, module).forward = _rounded_forward(module, update.scale, grids[name])
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
        update: Tensor = scale * ((inputs[0] @ module.lora_a) @ module.lora_b)
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


def _rounded_forward(module: Any, scale: float, blocks: Blocks) -> Callable[[Tensor], Tensor]:
    """Return what a linear MODULE computes with its sum at the nearest values of BLOCKS."""
    exact = grid_of(blocks)
    arrays = (exact.worth, exact.scales, exact.values)
    worth, scales, values = (torch.from_numpy(it.astype(np.float32)) for it in arrays)

    def forward(x: Tensor) -> Tensor:
        wanted = module.weight + scale * (module.lora_a @ module.lora_b).T
        if hasattr(module, "lora_m"):
            wanted = wanted * _factor(module, scale)[:, None]
        own = [it.to(wanted.dtype) for it in (worth, scales, values)]
        rounded = Grid(own[0], own[1], own[2], blocks.scheme).rounded(wanted.detach(), torch)
        weight = rounded + (wanted - wanted.detach())
        return nn.functional.linear(x, weight.to(x.dtype), module.bias)

    return forward
