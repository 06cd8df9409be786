"""Convolutions, and what follows them element by element, in the order in which they lie in memory.

torch counts channels at axis 1. MLX's convolutions take and leave them last, and their result is seen through
transposed axes, which costs nothing until two such arrays meet: MLX is slow on axes out of order. So these
operations get the axes as they lie, and their result is seen as torch counts it. No value changes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ..dispatch import LAST
from ..operations.axes import channels_first, channels_last
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
    lying: dict[Node, Node] = {}  # such a value -> the same with channels as the last axis
    for node in draft.calls():
        if _leaves_channels_last(node) or _keeps(node, lying):
            moved = _on_last(draft, node, [node.args[0]], lying)
            moved.meta[LAST] = True
            if isinstance(node.meta["val"], tuple):
                draft.replace(node, moved)
                continue
        elif _is_first_of_last(node):
            moved = _on_last(draft, node, [], lying)
        elif _movable(node, lying):
            moved = _on_last(draft, node, node.all_input_nodes, lying)
        else:
            continue
        lying[_seen(draft, node, moved)] = moved


def _leaves_channels_last(node: Node) -> bool:
    """Tell whether NODE is a convolution with a batch: without one, axis 0 has the channels."""
    if str(node.target) not in SOURCES:
        return False
    value, weight = recorded(node), recorded(node.args[1])
    return value is not None and weight is not None and value.dim() == weight.dim()


def _keeps(node: Node, lying: dict[Node, Node]) -> bool:
    return str(node.target) in KEEPERS and node.args[0] in lying


def _is_first_of_last(node: Node) -> bool:
    """Tell whether NODE is the first result of an operation that leaves channels last."""
    source = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(source, Node) and LAST in source.meta


def _movable(node: Node, lying: dict[Node, Node]) -> bool:
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


def _last(draft: Draft, near: Node, node: Node, lying: dict[Node, Node]) -> Node:
    """Return NODE with channels as the last axis."""
    value = recorded(node)
    if value is None or value.ndim == 0 or node in lying:
        return lying.get(node, node)
    order = channels_last(value.ndim)
    permute = torch.ops.aten.permute.default
    return draft.add(near, permute, node, [*order], val=value.permute(order))


def _on_last(draft: Draft, node: Node, operands: Iterable[Any], lying: dict[Node, Node]) -> Node:
    """Return the operation of NODE on OPERANDS with channels last; the others are as they are."""
    places = {x: _last(draft, node, x, lying) for x in operands}
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda x: places.get(x, x))
    value = node.meta["val"]
    first, *others = value if isinstance(value, tuple) else (value,)
    first = first.permute(channels_last(first.ndim))
    moved = draft.add(node, node.target, *args, val=(first, *others) if others else first)
    moved.kwargs = kwargs
    return moved


def _seen(draft: Draft, node: Node, moved: Node) -> Node:
    """Put MOVED, seen as torch counts axes, in the place of NODE."""
    value = node.meta["val"]
    order, back = [*channels_first(value.ndim)], channels_last(value.ndim)
    permute = torch.ops.aten.permute.default
    seen = draft.add(node, permute, moved, order, val=value, taken=(moved, back))
    draft.replace(node, seen)
    return seen
