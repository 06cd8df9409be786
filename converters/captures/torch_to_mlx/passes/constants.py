"""What depends on constants alone: positions, masks and rotary tables of fixed sizes.

Parameters and buffers of the state dict are no constants, since training and loading change them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.fx import Node

from ..sites import sites_of
from .draft import Draft, is_call, is_drawn, recorded
from .forms import ATTENTION, ROPE

LARGEST: Final = (
    2**24
)  # bytes that one folded constant may take; larger ones are computed each time
VIEWS: Final = ("view.default", "_unsafe_view.default")
REPEATS: Final = ("expand.default", "expand_as.default", "broadcast_to.default")  # take no memory


def fold_constants(draft: Draft) -> None:
    """Compute what depends on constants alone, in torch, once."""
    values: dict[Node, Any] = {
        node: draft.constants[node.name]
        for node in draft.graph.nodes
        if node.op == "placeholder" and node.name in draft.constants
    }
    for node in draft.calls():
        if _foldable(node, values):
            values[node] = _computed(node, values)
    for node in [node for node in values if node.op == "call_function"]:
        if _wanted(node, values):
            _fold(draft, node, values[node])


def _foldable(node: Any, known: Mapping[Node, Any]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
        return False
    if is_drawn(node) or node.target in {ATTENTION, ROPE}:
        return False
    return all(used in known for used in node.all_input_nodes)


def _computed(node: Any, values: Mapping[Node, Any]) -> Any:
    def value(argument: Any) -> Any:
        return values[argument] if isinstance(argument, Node) else argument

    args, kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), value)
    # copies before a view are gone by now, so its argument may lie as no view can take it
    call: Any = torch.ops.aten.reshape.default if is_call(node, *VIEWS) else node.target
    with torch.no_grad():
        return call(*args, **kwargs)


def _wanted(node: Any, known: Mapping[Node, Any]) -> bool:
    """Tell whether something that stays uses NODE, and it is worth its memory."""
    value, stays = (
        known[node],
        (user not in known or is_call(user, *REPEATS) for user in node.users),
    )
    if not isinstance(value, torch.Tensor) or is_call(node, *REPEATS):
        return False
    return value.nbytes <= LARGEST and (any(stays) or bool(sites_of(node)))


def _fold(draft: Draft, node: Any, value: torch.Tensor) -> None:
    """Put VALUE in the place of NODE; the output of a submodule stays a step, which passes it on."""
    held = draft.constant(f"folded_{node.name}", value, recorded(node))
    if not sites_of(node):
        draft.replace(node, held)
        return
    draft.replace(node, draft.add(node, torch.ops.aten.alias.default, held))
