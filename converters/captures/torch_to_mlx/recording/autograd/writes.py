"""Updates in place where gradients are off: PyTorch's gradient passes them by, a recorded one would end there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ......errors import UnsupportedError
from ..blocks import BLOCK
from ..places import line_of_node

_CUT: Final = "aten.detach.default"


def refuse_hidden_writes(program: ExportedProgram) -> None:
    """Refuse to write, hidden from gradients, to what depends on a parameter or a floating input.

    That is to write inside ``torch.no_grad``, or to what ``.detach()`` or ``.data`` gave. In PyTorch the new
    values are used and the gradient is that of the old ones, as if nothing was written.

    Raises:
        UnsupportedError: with the line that writes.
    """
    differentiable = _differentiable(program)
    for writer, changed in (*_in_blocks(program), *_through_detached(program)):
        if changed in differentiable:
            raise UnsupportedError(
                "a tensor with a gradient that is changed in place inside torch.no_grad, or through "
                f".detach() or .data, cannot be recorded: change a .clone() of it ({line_of_node(writer)})"
            )


def _in_blocks(program: ExportedProgram) -> Iterator[tuple[Node, Any]]:
    """Yield what writes in blocks without gradients, and the value outside to which it does."""
    for block in (node for node in program.graph.nodes if str(node.target) == BLOCK):
        body = cast(Any, block.args[1])
        inner = cast(GraphModule, program.graph_module.get_submodule(body.target))
        starts = [node for node in inner.graph.nodes if node.op == "placeholder"]
        outer = dict(zip(starts, block.args[2:], strict=True))
        for node in () if block.args[0] else filter(_writes, inner.graph.nodes):
            yield node, outer.get(_aliased(node)[-1])


def _through_detached(program: ExportedProgram) -> Iterator[tuple[Node, Any]]:
    """Yield what writes to a detached value whose own storage is read later, and that value."""
    order = {node: place for place, node in enumerate(program.graph.nodes)}
    for node in filter(_writes, program.graph.nodes):
        *views, storage = _aliased(node)
        later = any(order[user] > order[node] for user in storage.users)
        if later and any(str(view.target) == _CUT for view in views):
            yield node, storage


def _differentiable(program: ExportedProgram) -> set[Any]:
    """Return the values outside of blocks that PyTorch would take a gradient of."""
    signature = program.graph_signature
    begin = {*signature.inputs_to_parameters, *signature.user_inputs}
    found: set[Any] = set()
    for node in program.graph.nodes:
        derived = node.op == "placeholder" and node.name in begin
        passed_on = node.op == "call_function" and str(node.target) not in {_CUT, BLOCK}
        if (derived or (passed_on and found & set(node.all_input_nodes))) and _floating(node):
            found.add(node)
    return found


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _floating(node: Node) -> bool:
    dtype = _dtype(node)
    return dtype is None or dtype.is_floating_point


def _writes(node: Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _aliased(node: Node) -> list[Node]:
    """Return NODE and what it is a view of or changes, one after another; the value with the storage is last."""
    found = [node]
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        returned = getattr(getattr(node.target, "_schema", None), "returns", ())
        if not any(it.alias_info for it in returned) or _dtype(node) != _dtype(node.args[0]):
            break  # a value of its own, as of ``float()``
        node = node.args[0]
        found.append(node)
    return found
