"""Recurrent layers as Core ML's own operations and loops, of any length.

torch.export writes a layer out step by step, which fixes its length; ``kept_whole`` makes each one operation of
the graph, which coremltools' own translations of traced layers take.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from torch import nn

from ..captures.mlprogram.toolkit import quiet
from ..captures.torch_to_mlx.operations.recurrent.recorded import LAYERS

with quiet():
    from coremltools.converters.mil.frontend.torch import ops
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op

OUTPUTS: Final = {"lstm": 3}  # others have two: all states and the last one


def _translation(name: str) -> Any:
    def translate(context: Any, node: Any) -> None:
        own = copy.copy(node)
        own.inputs = [node.inputs[0], *node.inputs[2:]]  # without the lengths of packed sequences
        own.outputs = [f"{node.name}_{index}" for index in range(OUTPUTS.get(name, 2))]
        getattr(ops, name)(context, own)
        context.add(tuple(context[it] for it in own.outputs), torch_name=node.name)

    translate.__name__ = f"_{name}_of_any_length"  # coremltools registers it under its own name too
    return translate


for _name in LAYERS:
    register_torch_op(torch_alias=[f"weighbridge::{_name}"])(_translation(_name))


def translated(layer: nn.RNNBase) -> bool:
    """Say whether coremltools translates LAYER: no projections, and plain ones in one direction only."""
    return not layer.proj_size and not (isinstance(layer, nn.RNN) and layer.bidirectional)


def any_length(module: nn.Module) -> bool:
    """Say whether MODULE has recurrent layers, and coremltools translates them all."""
    layers = [it for it in module.modules() if isinstance(it, nn.RNNBase)]
    return bool(layers) and all(map(translated, layers))
