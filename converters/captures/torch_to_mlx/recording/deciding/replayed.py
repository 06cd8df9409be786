"""A recorded program, run in torch on other tensors than it was recorded with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..sources import input_names, sources, user_inputs

_CHECKS: Final = ("aten._assert", "aten.sym_constrain_range")


def replayed(
    program: ExportedProgram,
    inputs: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
    before: Callable[[Node], None] = lambda _: None,
) -> Any:
    """Return what the graph of PROGRAM gives.

    Args:
        program: what was recorded.
        inputs: by path.
        state: parameters and buffers by name.
        before: called with each step before it runs.
    """
    reads, constants = sources(program)
    values = {node: state[name] for node, name in reads.items()} | constants
    names = zip(user_inputs(program), input_names(program), strict=True)
    values |= {node: inputs[name] for node, name in names}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    graph = _Replaying(program.graph_module)
    graph.before = before
    return graph.run(*(values[node.name] for node in nodes))


class _Replaying(torch.fx.Interpreter):
    """Runs a graph; strides of other sizes may not allow the views of the example's, and checks are the recording's own."""

    before: Callable[[Node], None]

    def run_node(self, n: Node) -> Any:
        """Return what N gives."""
        self.before(n)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what TARGET gives."""
        if str(target).startswith(_CHECKS):
            return None
        view = target is torch.ops.aten.view.default
        return super().call_function(
            torch.ops.aten.reshape.default if view else target, args, kwargs
        )
