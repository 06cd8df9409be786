"""Primitives that move, choose or join elements at places known beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from .registry import Call, primitive


@primitive("Broadcast")
def _broadcast(call: Call) -> Tensor:
    return call.inputs[0].expand(list(call.shapes[0]))


@primitive("Reshape Flatten Unflatten")
def _reshape(call: Call) -> Tensor:
    return call.inputs[0].reshape(list(call.shapes[0]))


@primitive("Transpose")
def _transpose(call: Call) -> Tensor:
    return call.inputs[0].permute(call.arguments[0])


@primitive("Squeeze")
def _squeeze(call: Call) -> Tensor:
    return call.inputs[0].squeeze(tuple(call.arguments[0]))


@primitive("ExpandDims")
def _expand_dims(call: Call) -> Tensor:
    made = call.inputs[0]
    for axis in sorted(call.arguments[0]):
        made = made.unsqueeze(axis)
    return made


@primitive("Concatenate")
def _concatenate(call: Call) -> Tensor:
    return torch.cat(list(call.inputs), call.arguments[0])


@primitive("Split")
def _split(call: Call) -> Sequence[Tensor]:
    places, axis = call.arguments
    edges = [0, *places, call.inputs[0].shape[axis]]
    return torch.split(call.inputs[0], [b - a for a, b in itertools.pairwise(edges)], axis)


@primitive("Arange")
def _arange(call: Call) -> Tensor:
    limits = [int(it) if isinstance(it, float) and it == int(it) else it for it in call.arguments]
    return torch.arange(*limits, dtype=call.dtypes[0])


@primitive("Slice")
def _slice(call: Call) -> Tensor:
    made = call.inputs[0]
    for axis, (start, stop, step) in enumerate(zip(*call.arguments, strict=True)):
        made = _along(made, axis, (start, stop, step), call.shapes[0][axis])
    return made


def _along(x: Tensor, axis: int, limits: tuple[int, int, int], count: int) -> Tensor:
    """Return COUNT elements of X along AXIS; torch has no negative steps."""
    start, stop, step = limits
    if step > 0:
        whole = step == 1 and count is x.shape[axis]
        return x if whole else x[(slice(None),) * axis + (slice(start, stop, step),)]
    last = start + step * (count - 1)
    return x[(slice(None),) * axis + (slice(last, start + 1, -step),)].flip(axis)


REDUCED = {
    0: "amax",
    1: "amin",
    2: "sum",
    3: "prod",
}  # how an update meets what is there; 4 replaces


@primitive("SliceUpdate", refuses=lambda arguments, _: _backwards(arguments[3]))
def _slice_update(call: Call) -> Tensor:
    mode, starts, stops, steps = call.arguments
    source, update = call.inputs
    made = source.clone()
    place = tuple(itertools.starmap(slice, zip(starts, stops, steps, strict=True)))
    made[place] = meet(source[place], update, mode)
    return made


def meet(there: Tensor, update: Tensor, mode: int) -> Tensor:
    """Return what an UPDATE makes of what is THERE."""
    if mode == 2:  # see REDUCED
        return there + update
    if mode == 3:
        return there * update
    return (torch.maximum, torch.minimum)[mode](there, update) if mode < 2 else update


def _backwards(steps: Sequence[int]) -> str | None:
    return "a negative step" if any(step < 0 for step in steps) else None


@primitive("Pad")
def _pad(call: Call) -> Tensor:
    x, value = call.inputs
    made = x
    for axis, low, high in zip(*call.arguments, strict=True):
        edges = [
            value.expand([*x_shape[:axis], size, *x_shape[axis + 1 :]])
            for size in (low, high)
            for x_shape in [made.shape]
        ]
        parts = [
            part
            for part, size in zip((edges[0], made, edges[1]), (low, 1, high), strict=True)
            if size
        ]
        made = torch.cat(parts, axis) if len(parts) > 1 else made
    return made


@primitive("AsStrided")
def _as_strided(call: Call) -> Tensor:
    shape, strides, offset = call.arguments
    return call.inputs[0].contiguous().as_strided(shape, strides, offset)
