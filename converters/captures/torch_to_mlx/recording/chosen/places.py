"""Places that a mask chooses, as ``nonzero`` and ``torch.where`` give them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils import _pytree as pytree

from .editing import ATEN, Editor


def masks_for_places(program: ExportedProgram) -> None:
    """Let what indexes by all places of a mask, as ``torch.where(mask)`` gives them, index by the mask."""
    for node in list(program.graph.nodes):
        if node.target is ATEN.index_select.default and node.args[1] == 0:
            mask = _mask_of(program, [node.args[2]])
            if mask is not None:
                node.target, node.args = ATEN.index.Tensor, (node.args[0], [mask])
        elif node.target in (ATEN.index.Tensor, ATEN.index_put.default):
            mask = _mask_of(program, node.args[1])
            if mask is not None:
                node.update_arg(1, [mask])


def _mask_of(program: ExportedProgram, places: Any) -> Node | None:
    """Return the mask of which PLACES are all, one tensor for each of its axes in order."""
    found = [_place(it) for it in places]
    nonzero = found[0][0] if found and found[0] else None
    if nonzero is None or found != [(nonzero, axis) for axis in range(len(found))]:
        return None
    with program.graph.inserting_before(nonzero):
        return mask_of(program, nonzero) if nonzero.args[0].meta["val"].ndim == len(found) else None


def mask_of(program: ExportedProgram, nonzero: Any) -> Node | None:
    """Return the mask whose places NONZERO finds; ``None`` where their number is known, or that of its own elements is not."""
    mask: Node = nonzero.args[0]
    value = mask.meta["val"]
    found = pytree.tree_leaves(nonzero.meta["val"])
    open_ = bool(found) and free_symbols(found[0].shape[0]) and not free_unbacked_symbols(value)
    if not open_ or value.dtype == torch.bool:
        return mask if open_ else None
    made: Node = program.graph.call_function(ATEN.ne.Scalar, (mask, 0))
    with value.fake_mode:
        made.meta = {**nonzero.meta, "val": value != 0}
    return made


def _place(node: Any) -> tuple[Any, int] | None:
    """Return the ``nonzero`` of which NODE is a column, and which."""
    target = getattr(node, "target", None)
    if target is operator.getitem and node.args[0].target is ATEN.where.default:
        return node.args[0], node.args[1]
    if target is operator.getitem and _columns(node.args[0]):
        table, column = node.args[0].args[0], node.args[1]
    elif target is ATEN.select.int and node.args[1] == 1:
        table, column = node.args[0], node.args[2]
    elif target is ATEN.squeeze.dim and node.args[1] in (1, -1):
        table, column = node.args[0], 0
    else:
        return None
    return (table, column) if table.target is ATEN.nonzero.default else None


def _columns(node: Any) -> bool:
    return node.target is ATEN.unbind.int and node.args[1:] == (1,)


def places(editor: Editor, near: Node, mask: Node, flat: Node) -> Node:
    """Return all places of MASK, a row each, in the order of FLAT."""
    sizes = editor.sizes(near, mask)
    count = editor.sizes(near, flat)[0]
    along = editor.call(near, ATEN.arange.default, count)
    columns = []
    for axis in range(len(sizes)):
        column, step = along, editor.product(near, sizes[axis + 1 :])
        if axis + 1 < len(sizes):
            column = editor.call(near, ATEN.div.Tensor_mode, along, step, rounding_mode="floor")
        if axis > 0:
            column = editor.call(near, ATEN.remainder.Scalar, column, sizes[axis])
        columns.append(column)
    return editor.call(near, ATEN.stack.default, columns, 1)
