"""Examples at other sizes, and how far a recording is from MLX on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..torch_to_mlx.dtypes import to_torch

Dynamic = Mapping[str, Mapping[int, str]]
Arrays = dict[str, mx.array]


def resized(arrays: Mapping[str, mx.array], dynamic: Dynamic, sizes: Mapping[str, int]) -> Arrays:
    """Return ARRAYS with the SIZES wanted: their values again and again, so that they stay valid."""
    made = dict(arrays)
    for name, axes in dynamic.items():
        for axis, size in axes.items():
            there = made[name].shape[axis]
            made[name] = mx.take(made[name], mx.arange(sizes[size]) % there, axis)
    return made


def outlined(arrays: Mapping[str, mx.array], dynamic: Dynamic, sizes: Mapping[str, int]) -> Arrays:
    """Return zeros that take no memory, in the shapes that ``resized`` would give."""
    made = {}
    for name, array in arrays.items():
        shape = list(array.shape)
        for axis, size in dynamic.get(name, {}).items():
            shape[axis] = sizes[size]
        made[name] = mx.broadcast_to(mx.zeros((), array.dtype), shape)
    return made


def varied(arrays: Mapping[str, mx.array], example: Mapping[str, mx.array]) -> Arrays | None:
    """Return ARRAYS with values drawn from the EXAMPLE, floats scaled; ``None`` if these are all one.

    Values that come again in a fixed period, or are all one, would hide what a module leaves out.
    """
    draw = np.random.default_rng(0)
    if not any(_varies(it) for it in example.values()):
        return None
    return {name: _drawn(it, example[name], draw) for name, it in arrays.items()}


def _varies(array: mx.array) -> bool:
    floating = mx.issubdtype(array.dtype, mx.floating)
    return bool(floating or mx.any(array != array.flatten()[:1]).item())


def _drawn(array: mx.array, example: mx.array, draw: np.random.Generator) -> mx.array:
    if not example.size:
        return array
    values = example.flatten()[mx.array(draw.integers(0, example.size, array.shape))]
    if not mx.issubdtype(array.dtype, mx.floating):
        return values
    return widest(values) * mx.array(draw.uniform(0.5, 1.5, array.shape).astype(np.float32))


def widest(array: mx.array) -> mx.array:
    """Return ARRAY in float32 if it is in floating point."""
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def gap(wanted: Any, found: Any) -> float:
    """Return the largest ``||found - wanted|| / ||wanted||`` of what MLX and torch return, in float64.

    It is infinite where they are no such pair: other shapes, other numbers or texts.
    """
    pairs = zip(pytree.tree_leaves(wanted), pytree.tree_leaves(found), strict=True)
    return max((_gap(its, ours) for its, ours in pairs), default=0.0)


def _gap(wanted: Any, found: Any) -> float:
    if not isinstance(wanted, mx.array):
        return 0.0 if wanted == found else math.inf
    theirs = to_torch(wanted).double()
    if theirs.shape != found.shape:
        return math.inf
    difference = float((found.double() - theirs).norm())
    if not math.isfinite(difference):
        return math.inf
    return difference / (float(theirs.norm()) or 1.0)


def as_tensors(arrays: Mapping[str, mx.array]) -> dict[str, torch.Tensor]:
    """Return ARRAYS in torch."""
    return {name: to_torch(it) for name, it in arrays.items()}
