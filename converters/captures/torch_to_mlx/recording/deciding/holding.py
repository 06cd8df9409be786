"""Whole numbers among the inputs that decide what is computed: grids of images, lengths of sequences.

``torch.export`` records what is done with values, and cannot loop over ones that it does not know. Where such an
input decides, it is held as the example has it, and the captured module refuses other values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...census import live_nodes
from .experts import every_expert
from .known import WHOLE, Known
from .masks import is_mask

_LARGEST: Final = 2**16  # numbers that such an input may have


def candidates(inputs: Mapping[str, Any], dynamic: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return those of INPUTS that may be held: whole numbers of a fixed size; masks have a way of their own."""
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        if not is_mask(name) and name not in dynamic
        if value.dtype in WHOLE and value.numel() <= _LARGEST
    }


@contextlib.contextmanager
def holding(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[Known]:
    """Let MODULE take VALUES, by name of the input, for what it is given in the block; yield what it does with them."""
    own, known = module.forward, Known(values)

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with known:
            return own(*args, **{**kwargs, **known.values})

    with mock.patch.object(module, "forward", forward), every_expert(module):
        yield known


def is_open(program: ExportedProgram) -> bool:
    """Tell whether PROGRAM uses values that nobody knows, or sizes that follow from them."""
    return any(map(_is_open, live_nodes(program.graph_module.graph)))


def _is_open(node: Node) -> bool:
    value = node.meta.get("val")
    kinds = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool
    return isinstance(value, kinds) and bool(free_unbacked_symbols(value))


def shows(program: ExportedProgram) -> bool:
    """Tell whether PROGRAM has a floating result, which can be NaN where an input is not as it was held."""
    specs = program.graph_signature.output_specs
    own = {spec.arg.name for spec in specs if spec.kind.name == "USER_OUTPUT"}
    results = next(iter(reversed(program.graph_module.graph.nodes))).all_input_nodes
    return any(it.name in own and it.meta["val"].is_floating_point() for it in results)
