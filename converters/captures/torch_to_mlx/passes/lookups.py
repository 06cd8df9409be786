"""Lookups by constant indices that repeat: looked up once, and repeated after.

The gradient of a lookup adds up rows one by one; that of a repetition is a sum, which is much faster
where all the rows are one, as those of token types are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from .constants import REPEATS
from .draft import Draft, is_call, recorded
from .masks import Same, Value, value_of


def shorten_lookups(draft: Draft) -> None:
    """Look up once what a constant index repeats along an axis, at all sizes."""
    known = _uniform(draft)
    for node in draft.calls():
        indices = recorded(node.args[1]) if is_call(node, "embedding.default") else None
        if indices is None:
            continue
        short = _short(draft, node.args[1], indices.ndim, known)
        if short is not None and tuple(short.shape) != tuple(indices.shape):
            _replace(draft, node, short)


def _uniform(draft: Draft) -> dict[Node, Value]:
    """Return the constants that hold one number everywhere."""
    named = {name: it for name, it in draft.constants.items() if it.numel() and not it.is_complex()}
    same = {
        name: it.flatten()[0] for name, it in named.items() if bool((it == it.flatten()[0]).all())
    }
    return {node: Same(same[node.name].item()) for node in draft.graph.nodes if node.name in same}


def _short(draft: Draft, indices: Any, axes: int, known: dict[Node, Value]) -> torch.Tensor | None:
    """Return the values of INDICES, of one element along every axis where they are repeated, if known."""
    value = value_of(indices, known)
    if isinstance(value, Same) and type(value.value) is int:
        return torch.full((1,) * axes, value.value)
    while is_call(indices, *REPEATS):
        indices = indices.args[0]
    if not isinstance(indices, Node) or indices.name not in draft.constants:
        return None
    values = draft.constants[indices.name]
    return _without_repeats(values.reshape(*[1] * (axes - values.ndim), *values.shape))


def _without_repeats(indices: torch.Tensor) -> torch.Tensor:
    """Return the first of INDICES along every axis along which all are the same."""
    for axis in range(indices.ndim):
        first = indices.narrow(axis, 0, 1) if indices.shape[axis] else indices
        indices = first if bool((indices == first).all()) else indices
    return indices


def _replace(draft: Draft, node: Any, short: torch.Tensor) -> None:
    weight, indices, *options = node.args
    wanted, width = recorded(indices), recorded(node).shape[-1]
    held = draft.constant(f"short_{node.name}", short, wanted.new_empty(short.shape))
    rows = recorded(node).new_empty(*short.shape, width)
    looked_up = draft.add(node, node.target, weight, held, *options, val=rows)
    sizes = [*_sizes(draft, node, indices), width]
    draft.replace(node, draft.add(node, torch.ops.aten.expand.default, looked_up, sizes))


def _sizes(draft: Draft, near: Any, node: Any) -> Iterator[Any]:
    """Yield the sizes of NODE, those that vary as nodes."""
    for axis, size in enumerate(recorded(node).shape):
        if type(size) is int:
            yield size
        else:
            yield draft.add(near, torch.ops.aten.sym_size.int, node, axis, val=size)
