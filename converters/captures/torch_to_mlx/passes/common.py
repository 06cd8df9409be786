"""Operations that occur several times with the same arguments, as a mask in each layer."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ..sites import sites_of
from .draft import Draft, is_drawn


def merge_common(draft: Draft) -> None:
    """Compute what is the same once; what a submodule returns stays its own."""
    seen: dict[Any, Node] = {}
    for node in draft.calls():
        if not _mergeable(node):
            continue
        first = seen.setdefault(_key(node), node)
        if first is not node and not sites_of(node):
            draft.replace(node, first)


def _mergeable(node: Any) -> bool:
    known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
    return known and not is_drawn(node)


def _key(node: Any) -> Any:
    """Return what tells the call from others; 1, 1.0 and True are three arguments."""
    return node.target, repr(node.args), repr(sorted(node.kwargs.items()))
