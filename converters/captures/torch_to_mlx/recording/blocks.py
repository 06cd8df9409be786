"""Blocks in which gradients are off or on: graphs of their own, as ``torch.export`` records them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .....errors import UnsupportedError
from .places import line_of_caller

BLOCK: Final = "wrap_with_set_grad_enabled"


def parts_of(program: ExportedProgram) -> list[GraphModule]:
    """Return the graphs of PROGRAM, inner ones last."""
    return [part for part in program.graph_module.modules() if isinstance(part, GraphModule)]


def _blocks(module: GraphModule) -> Iterator[Any]:
    return (node for node in list(module.graph.nodes) if str(node.target) == BLOCK)


def replace(program: ExportedProgram, old: Node, new: Node) -> None:
    """Let NEW be used for OLD in PROGRAM, which returns it where it returned OLD."""
    old.replace_all_uses_with(new)
    program.graph_signature.replace_all_uses(old.name, new.name)
    old.graph.erase_node(old)


def drop_answers(program: ExportedProgram) -> None:
    """Drop questions about constants that were answered while recording, such as ``promote_types``."""
    for part in parts_of(program):
        for node in list(part.graph.nodes):
            asked = node.op == "call_function" and isinstance(node.target, OpOverload)
            if asked and not node.users and not node.all_input_nodes:
                part.graph.erase_node(node)
        part.recompile()


def detach_blocks(program: ExportedProgram) -> None:
    """Detach what leaves a ``torch.no_grad`` block: decomposition forgets where the blocks were."""
    for part in parts_of(program):
        for block in _blocks(part):
            for value in () if block.args[0] else list(block.users):  # one per value that leaves
                _detach(program, value)
        part.recompile()


def _detach(program: ExportedProgram, value: Node) -> None:
    with value.graph.inserting_after(value):
        detached = value.graph.call_function(torch.ops.aten.detach.default, (value,))
    detached.meta = dict(value.meta)
    value.replace_all_uses_with(detached, lambda user: user is not detached)
    program.graph_signature.replace_all_uses(value.name, detached.name)


def inline_blocks(program: ExportedProgram) -> None:
    """Write out the blocks of PROGRAM, where they stand."""
    for part in reversed(parts_of(program)):
        for block in _blocks(part):
            _inline(program, part, block)
        part.delete_all_unused_submodules()
        part.recompile()


def _inline(program: ExportedProgram, module: GraphModule, block: Any) -> None:
    body = block.args[1]
    inner = cast(GraphModule, module.get_submodule(body.target))
    for node in inner.graph.nodes:
        if node.op == "get_attr":
            place = f"{body.target}_{node.target}"
            module.add_submodule(place, inner.get_submodule(node.target))
            node.target = place
    starts = [node for node in inner.graph.nodes if node.op == "placeholder"]
    known: Any = dict(zip(starts, block.args[2:], strict=True))
    with module.graph.inserting_before(block):
        results: Any = module.graph.graph_copy(inner.graph, known)
    for value in list(block.users):
        replace(program, value, results[value.args[1]])
    module.graph.erase_node(block)
    if not body.users:
        module.graph.erase_node(body)


@contextlib.contextmanager
def refused_in_autocast() -> Iterator[None]:
    """Refuse to switch gradients off inside ``torch.autocast``, which ``torch.export`` forgets.

    Raises:
        UnsupportedError: with the line that does it.
    """
    entered: list[Any] = []
    autocast: Any = torch.amp.autocast_mode.autocast
    switches: Any = torch.autograd.grad_mode

    def checked(run: Callable[..., Any]) -> Callable[..., Any]:
        def switched(block: Any, *mode: bool) -> Any:
            if entered and not any(mode) and torch.is_grad_enabled():
                raise UnsupportedError(
                    "gradients that are switched off inside torch.autocast cannot be recorded: "
                    f"call .detach() on the result, or open the autocast inside ({line_of_caller()})"
                )
            return run(block, *mode)

        return switched

    def enter(block: Any) -> Any:
        entered.append(block)
        return entering(block)

    def leave(block: Any, *error: Any) -> Any:
        entered.pop()
        return leaving(block, *error)

    entering, leaving = autocast.__enter__, autocast.__exit__
    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (autocast, "__enter__", enter),
            (autocast, "__exit__", leave),
            (switches.no_grad, "__enter__", checked(switches.no_grad.__enter__)),
            (switches.set_grad_enabled, "__init__", checked(switches.set_grad_enabled.__init__)),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield
