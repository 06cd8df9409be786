"""Updates in place where gradients are off: PyTorch's gradient passes them by, a recorded one would end there."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ......errors import UnsupportedError
from ..blocks import BLOCK
from ..places import line_of_node
from ..pure import shares

_CUT: Final = "aten.detach.default"
torch.library.define("weighbridge::passed_by", "(Tensor old, Tensor new) -> Tensor")
torch.library.register_fake("weighbridge::passed_by", lambda _, new: torch.empty_like(new))


def pass_hidden_writes(program: ExportedProgram) -> None:
    """Let gradients pass by what is written, hidden from them, to what depends on a parameter or a floating input.

    That is to write inside ``torch.no_grad``, or to what ``.detach()`` or ``.data`` gave. In PyTorch the new
    values are used and the gradient is that of the old ones, as if nothing was written.

    Raises:
        UnsupportedError: with the line that writes, where that shows in another tensor of the same memory.
    """
    differentiable = _differentiable(program)
    for write in chain(_in_blocks(program), _in_losses(program), _through_detached(program)):
        if write.changed in differentiable:
            _pass_by(write)
            differentiable = _differentiable(program)


@dataclass(frozen=True)
class _Write:
    """What writes, to which value, in which call of the graph; and what else is that value after it."""

    writer: Node
    changed: Any
    call: Node
    also: tuple[Node, ...] | None = ()  # None: a view of it


def _pass_by(write: _Write) -> None:
    """Use, after WRITE, a value that is new and has the gradient of the old one."""
    changed, call = write.changed, write.call
    *updates, made = same = _aliased(changed)
    others = (user for value in same for user in value.users if user not in {*same, call})
    seen = any(shares(user) for user in others if user < call)
    if write.also is None or seen or shares(made) or not all(map(_writes, updates)):
        raise UnsupportedError(
            "a tensor with a gradient that is changed in place inside torch.no_grad, or through "
            ".detach() or .data, cannot be recorded where it is a parameter or an input, or a view of it is"
            " used too: change a .clone() of it "
            f"({line_of_node(write.writer)})"
        )
    graph = call.graph
    with graph.inserting_before(call):
        old = graph.call_function(torch.ops.aten.clone.default, (changed,))
    with graph.inserting_after((call, *write.also)[-1]):
        passed = graph.call_function(torch.ops.weighbridge.passed_by.default, (old, changed))
    old.meta, passed.meta = dict(changed.meta), dict(changed.meta)
    for value in (*same, *write.also):
        value.replace_all_uses_with(passed, lambda user: call < user and user is not passed)


def _in_blocks(program: ExportedProgram) -> Iterator[_Write]:
    """Yield what writes in blocks without gradients to a value outside."""
    for block in (node for node in program.graph.nodes if str(node.target) == BLOCK):
        body = cast(Any, block.args[1])
        inner = cast(GraphModule, program.graph_module.get_submodule(body.target))
        starts = [node for node in inner.graph.nodes if node.op == "placeholder"]
        outer = dict(zip(starts, block.args[2:], strict=True))
        writers = [] if block.args[0] else [*filter(_writes, inner.graph.nodes)]
        for storage, writer in {_aliased(writer)[-1]: writer for writer in writers}.items():
            if storage in outer:
                cut = any(map(_is_cut, chain.from_iterable(map(_aliased, writers))))
                also = None if cut else _leaving(block, inner, storage)
                yield _Write(writer, outer[storage], block, also)


def _leaving(block: Node, inner: GraphModule, storage: Node) -> tuple[Node, ...] | None:
    """Return what leaves BLOCK and is STORAGE; ``None`` if a view of it leaves."""
    found, results = [], cast(Any, inner.graph.output_node().args[0])
    for value in block.users:
        *views, first = _aliased(results[value.args[1]])
        if first is storage and not all(map(_writes, views)):
            return None
        found += [value] if first is storage else []
    return tuple(found)


def _in_losses(program: ExportedProgram) -> Iterator[_Write]:
    """Yield the bound that a Gaussian loss sets to variances: its block without gradients leaves no trace."""
    for node in filter(_writes, program.graph.nodes):
        if node.meta.get("torch_fn", ("", ""))[1] == "function.gaussian_nll_loss":
            yield _Write(node, node.args[0], node, (node,))


def _through_detached(program: ExportedProgram) -> Iterator[_Write]:
    """Yield what writes to a detached value whose own storage is read later."""
    order = {node: place for place, node in enumerate(program.graph.nodes)}
    for node in filter(_writes, program.graph.nodes):
        *views, storage = _aliased(node)
        later = any(order[user] > order[node] for user in storage.users)
        if later and any(map(_is_cut, views)):
            yield _Write(node, storage, node, None)


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


def _is_cut(node: Node) -> bool:
    """Tell whether NODE is ``.detach()`` or ``.data``, of which the latter changes what gradients are computed from."""
    return str(node.target) == _CUT


def _writes(node: Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _aliased(node: Node) -> list[Node]:
    """Return NODE and what it is a view of or changes, one after another; the value with the storage is last."""
    found = [node]
    while node.op == "call_function" and (shown := _shown(node)) is not None:
        if len({_dtype(node), _dtype(shown)} - {None}) > 1:
            break  # a value of its own, as of ``float()``
        node = shown
        found.append(node)
    return found


def _shown(node: Node) -> Node | None:
    """Return the argument of which NODE is a view, or that it changes; ``None`` where there is none."""
    taken = getattr(getattr(node.target, "_schema", None), "arguments", ())
    names = [it.name for it in taken if it.alias_info]
    first = [0] if node.target is operator.getitem or (taken and taken[0].alias_info) else []
    values = [*(node.args[place] for place in first), *(node.kwargs.get(name) for name in names)]
    return next((it for it in values if isinstance(it, Node)), None)
