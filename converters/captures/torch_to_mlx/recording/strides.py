"""Views by strides: they count in memory, where a transposed tensor lies in another order than its axes say."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.export import ExportedProgram

_VIEW: Final = torch.ops.aten.as_strided.default


def order_as_stored(program: ExportedProgram) -> None:
    """Permute what is viewed by strides in PROGRAM, so that its axes lie in memory in their order."""
    nodes: Any = program.graph_module.graph.find_nodes(op="call_function", target=_VIEW)
    for node in nodes:
        source = node.args[0]
        value = source.meta["val"]
        order = sorted(range(value.ndim), key=lambda axis: -value.stride(axis))
        if order == list(range(value.ndim)):
            continue
        with node.graph.inserting_before(node):
            moved = node.graph.call_function(torch.ops.aten.permute.default, (source, order))
        moved.meta = {**source.meta, "val": value.permute(order)}
        node.replace_input_with(source, moved)


def lies_in_order(value: torch.Tensor) -> bool:
    """Tell whether VALUE lies in memory as its shape says, and nothing else does."""
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return value.is_contiguous() and whole
