"""Quantized weights of a model brought to the parameters of its torch class, codes as they are.

First back through the model's own map, to the names of a torch checkpoint, then through what loading
one does: experts stacked, projections fused, prefixes added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...models import Model
from ...quantization import Blocks, Dequantized
from ...runtimes.pretrained import torch_config
from ..binding.plan import Plan
from ..binding.quantized import CannotMoveError, move_blocks
from .choose import known_map
from .modules import module_map
from .torch_side import torch_side


class TorchBlocks(NamedTuple):
    """Quantized weights by parameter of a torch class.

    Attributes:
        blocks: parameter -> codes and scales.
        dense: tensor of the checkpoint that is quantized, and cannot be there -> why.
    """

    blocks: Mapping[str, Blocks]
    dense: Mapping[str, str]


def torch_blocks(model: Model) -> TorchBlocks:
    """Return the quantized weights of MODEL, seen dense, by parameter of its torch class."""
    own, dense = model.own_values().checkpoint, dict[str, str]()
    if not isinstance(own, Dequantized):
        return TorchBlocks({}, {})
    blocks = {name: Blocks(own.parts(name), scheme) for name, scheme in own.schemes.items()}
    if model.framework == "mlx":
        back = known_map(model).inverse()
        plan = back.bind(own.headers, config=model.config, sizes=model.sizes)
        blocks = _moved(plan, blocks, dense)
    if model.factory is None:
        config, headers = torch_config(model), torch_side(model).arrays.checkpoint.headers
        there = module_map(config, headers, model.family.torch_class if model.family else "")
        blocks = _moved(there.bind(headers, config=config), blocks, dense)
    return TorchBlocks(blocks, dense)


def _moved(plan: Plan, blocks: Mapping[str, Blocks], dense: dict[str, str]) -> dict[str, Blocks]:
    """Return BLOCKS moved by PLAN, and say in DENSE why some of them are not."""
    found: dict[str, Blocks] = {}
    for step in plan.steps:
        sources = {name: blocks[name] for name in step.source_names if name in blocks}
        if not sources:
            continue
        alone = replace(plan, steps=(step,), dropped=())
        try:
            if len(sources) == len(step.source_names):
                found |= move_blocks(alone, sources)
            else:
                dense |= dict.fromkeys(sources, "what becomes one tensor is only partly quantized")
        except CannotMoveError as error:
            dense |= dict.fromkeys(sources, "; ".join(error.problems))
    return found
