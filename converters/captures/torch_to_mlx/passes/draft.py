"""A recorded graph while passes rewrite it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from ..census import live_nodes
from ..drawing import is_drawn as draws
from ..sites import mark_sites, sites_of

KEPT: Final = ("nn_module_stack", "val")  # what a node that replaces another takes over from it


@dataclass
class Draft:
    """A graph that passes rewrite in place.

    Attributes:
        module: holds the graph.
        constants: graph value -> tensor that no training changes and no state dict names.
    """

    module: GraphModule
    constants: dict[str, torch.Tensor]

    def __post_init__(self) -> None:
        """Mark the outputs of submodules, which stay although nothing may use them, and drop what is dead."""
        mark_sites(live_nodes(self.graph))
        self.remove_dead_code()

    @property
    def graph(self) -> Graph:
        """The graph itself."""
        return self.module.graph

    def calls(self) -> list[Node]:
        """Return the operations of the graph, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def add(self, near: Any, target: Any, *args: Any, **meta: Any) -> Node:
        """Return a new call of TARGET before NEAR, in NEAR's module; ``val`` is what torch would record."""
        with self.graph.inserting_before(near):
            node = self.graph.call_function(target, args)
        node.meta = {key: near.meta[key] for key in KEPT if key in near.meta} | meta
        return node

    def remove_dead_code(self) -> None:
        """Remove what reaches no output, neither the graph's nor a submodule's; assertions do not."""
        live = set(live_nodes(self.graph))
        for node in reversed(self.calls()):
            if node not in live:
                self.graph.erase_node(node)
        used = {node.name for node in live}
        self.constants = {name: held for name, held in self.constants.items() if name in used}

    def constant(self, name: str, tensor: torch.Tensor, val: Any) -> Node:
        """Return a new input of the graph that is always TENSOR."""
        first = next(iter(self.graph.nodes))
        with self.graph.inserting_before(first):
            node = self.graph.placeholder(name)
        node.meta["val"] = val
        self.constants[node.name] = tensor
        return node

    def replace(self, old: Any, new: Any) -> None:
        """Let NEW be used for OLD everywhere, also as the output of submodules."""
        if sites_of(old):
            new.meta["sites"] = (*sites_of(new), *sites_of(old))
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)


def is_call(node: Any, *names: str) -> bool:
    """Tell whether NODE calls one of the operations NAMES, such as ``mul.Tensor`` (of ``aten``)."""
    if not isinstance(node, Node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return str(node.target).removeprefix("aten.") in names


def recorded(node: Any) -> Any:
    """Return the tensor without values that torch recorded for NODE, if it is one."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_drawn(node: Any) -> bool:
    """Tell whether NODE draws random numbers or takes memory as it is: no two are the same."""
    return draws(node.target) or "empty" in str(node.target)


def schema_arguments(node: Any) -> Mapping[str, Any]:
    """Return the arguments of NODE by the names of its schema, defaults included."""
    schema = node.target._schema.arguments
    given = {**dict(zip((a.name for a in schema), node.args, strict=False)), **node.kwargs}
    return {a.name: given.get(a.name, a.default_value) for a in schema}
