"""Lookups by constant indices that repeat: looked up once, and repeated after.

The gradient of a lookup adds up rows one by one; that of a repetition is a sum, which is much faster
where all the rows are one, as those of token types are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from .constants import REPEATS
from .draft import Draft, fixed_shape, is_call, recorded


def shorten_lookups(draft: Draft) -> None:
    """Look up once what a constant index repeats along an axis."""
    for node in draft.calls():
        shape = fixed_shape(recorded(node)) if is_call(node, "embedding.default") else None
        indices = None if shape is None else _constant(draft, node.args[1], len(shape) - 1)
        if shape is None or indices is None:
            continue
        short = _without_repeats(indices)
        if short.numel() < recorded(node.args[1]).numel():
            _replace(draft, node, short, shape)


def _constant(draft: Draft, indices: Any, axes: int) -> torch.Tensor | None:
    """Return the values of INDICES with as many AXES, of one element where they were repeated."""
    while is_call(indices, *REPEATS):
        indices = indices.args[0]
    if not isinstance(indices, Node) or indices.name not in draft.constants:
        return None
    values = draft.constants[indices.name]
    return values.reshape(*[1] * (axes - values.ndim), *values.shape)


def _without_repeats(indices: torch.Tensor) -> torch.Tensor:
    """Return the first of INDICES along every axis along which all are the same."""
    for axis in range(indices.ndim):
        first = indices.narrow(axis, 0, 1) if indices.shape[axis] else indices
        indices = first if bool((indices == first).all()) else indices
    return indices


def _replace(draft: Draft, node: Any, short: torch.Tensor, shape: tuple[int, ...]) -> None:
    weight, _, *options = node.args
    held = draft.constant(
        f"short_{node.name}", short.clone(), recorded(node.args[1]).new_empty(short.shape)
    )
    rows = recorded(node).new_empty(*short.shape, shape[-1])
    looked_up = draft.add(node, node.target, weight, held, *options, val=rows)
    draft.replace(node, draft.add(node, torch.ops.aten.expand.default, looked_up, list(shape)))
