"""Element-by-element operations on what convolutions leave, done in the order in which it lies in memory.

torch counts channels at axis 1. MLX's convolutions leave them last, and their result is seen through
transposed axes, which costs nothing until two such arrays meet: MLX is slow on axes out of order. So
these operations get the axes as they lie, and their result is seen as torch counts it. No value changes.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Node

from .draft import Draft, recorded

SOURCES: Final = frozenset(
    [
        *(f"aten.conv{n}d.{kind}" for n in (1, 2, 3) for kind in ("default", "padding")),
        *("aten.conv_transpose1d.default", "aten.convolution.default"),
        *(f"aten.conv_transpose{n}d.input" for n in (2, 3)),
    ]
)
KEEPERS: Final = frozenset(
    [
        *(f"aten.max_pool{n}d.default" for n in (1, 2, 3)),
        *(f"aten.upsample_nearest{n}d.vec" for n in (1, 2, 3)),
        *("aten.group_norm.default", "aten.batch_norm.default"),
        "aten._native_batch_norm_legit_functional.default",
        "aten._native_batch_norm_legit_no_training.default",
    ]
)


def keep_channels_last(draft: Draft) -> None:
    """Do operations on values whose channels lie last with these axes last."""
    lying: dict[Node, Node | None] = {}  # such a value -> the same with channels as the last axis
    for node in draft.calls():
        if _leaves_channels_last(node) or _keeps(node, lying):
            lying[node] = None
        elif _movable(node, lying):
            moved = _moved(draft, node, lying)
            lying[_seen(draft, node, moved)] = moved


def _leaves_channels_last(node: Node) -> bool:
    """Tell whether NODE is a convolution with a batch: without one, axis 0 has the channels."""
    if str(node.target) not in SOURCES:
        return False
    value, weight = recorded(node), recorded(node.args[1])
    return value is not None and weight is not None and value.dim() == weight.dim()


def _keeps(node: Node, lying: dict[Node, Node | None]) -> bool:
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and bool(node.args[1] == 0) and source in lying
    return str(node.target) in KEEPERS and node.args[0] in lying


def _movable(node: Node, lying: dict[Node, Node | None]) -> bool:
    """Tell whether NODE works element by element on values that lie so; others only broadcast."""
    value = recorded(node)
    if value is None or torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    alike = [x for x in node.all_input_nodes if _shape(x) == tuple(value.shape)]
    ranks = {len(_shape(x)) for x in node.all_input_nodes if recorded(x) is not None}
    return bool(alike) and all(x in lying for x in alike) and ranks <= {0, value.ndim}


def _shape(node: Node) -> tuple[Any, ...]:
    value = recorded(node)
    return () if value is None else tuple(value.shape)


def _last(draft: Draft, near: Node, node: Node, lying: dict[Node, Node | None]) -> Node:
    """Return NODE with channels as the last axis."""
    value, known = recorded(node), lying.get(node)
    if value is None or value.ndim == 0:
        return node
    if known is None:
        order = [0, *range(2, value.ndim), 1]
        permute = torch.ops.aten.permute.default
        known = draft.add(near, permute, node, order, val=value.permute(order))
        if node in lying:
            lying[node] = known
    return known


def _moved(draft: Draft, node: Node, lying: dict[Node, Node | None]) -> Node:
    """Return the operation of NODE on operands with channels last."""
    places = {x: _last(draft, node, x, lying) for x in node.all_input_nodes}
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), places.__getitem__)
    value = node.meta["val"]
    order = [0, *range(2, value.ndim), 1]
    moved = draft.add(node, node.target, *args, val=value.permute(order))
    moved.kwargs = kwargs
    return moved


def _seen(draft: Draft, node: Node, moved: Node) -> Node:
    """Put MOVED, seen as torch counts axes, in the place of NODE."""
    value = node.meta["val"]
    order = [0, value.ndim - 1, *range(1, value.ndim - 1)]
    back = (0, *range(2, value.ndim), 1)
    permute = torch.ops.aten.permute.default
    seen = draft.add(node, permute, moved, order, val=value, taken=(moved, back))
    draft.replace(node, seen)
    return seen
