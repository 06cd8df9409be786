"""Primitives that read or write at places that arrays say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .arrangement import REDUCED, meet
from .registry import Call, primitive


def _windows(arguments: Sequence[Any], _: Sequence[Any]) -> str | None:
    axes, sizes = arguments
    return "windows at the places" if any(sizes[axis] != 1 for axis in axes) else None


def _axes_first(x: Tensor, axes: Sequence[int]) -> Tensor:
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    return x if list(axes) == list(range(len(axes))) else x.permute([*axes, *rest])


@primitive("Gather", refuses=_windows)
def _gather(call: Call) -> Tensor:
    axes, sizes = call.arguments
    source, *places = call.inputs
    if not axes:
        return source
    made = _axes_first(source, axes)[tuple(place.long() for place in places)]
    lead = made.ndim - (source.ndim - len(axes))
    for place, axis in enumerate(it for it in range(source.ndim) if it not in axes):
        if sizes[axis] != source.shape[axis]:
            made = made.narrow(lead + place, 0, sizes[axis])
    for axis in sorted(axes):
        made = made.unsqueeze(lead + axis)
    return made


@primitive("GatherAxis")
def _gather_axis(call: Call) -> Tensor:
    source, places = call.inputs
    axis = call.arguments[0]
    shape = list(call.shapes[0])
    shape[axis] = source.shape[axis]
    return torch.gather(source.expand(shape), axis, _wrapped(places, source.shape[axis]))


def _wrapped(places: Tensor, size: Any) -> Tensor:
    """Return PLACES that count from the start; torch.gather takes no negative ones."""
    wide = places.long()
    return torch.where(wide < 0, wide + size, wide)


@primitive("ScatterAxis")
def _scatter_axis(call: Call) -> Tensor:
    source, places, update = call.inputs
    mode, axis = call.arguments
    wide = _wrapped(places, source.shape[axis])
    shape = list(call.shapes[0])
    shape[axis] = -1
    wide, update = wide.expand(shape), update.expand(shape)
    if mode == 0:
        return source.scatter_add(axis, wide, update)
    return source.scatter(axis, wide, update)


def _partial(arguments: Sequence[Any], shapes: Sequence[Any]) -> str | None:
    _, axes = arguments
    source, *_, update = shapes
    window = update[len(update) - len(source) :]
    wanted = [1 if axis in axes else size for axis, size in enumerate(source)]
    return None if list(window) == wanted else "windows at the places"


@primitive("Scatter", refuses=_partial)
def _scatter(call: Call) -> Tensor:
    mode, axes = call.arguments
    source, *places, update = call.inputs
    if not axes:
        return meet(source, update.reshape(source.shape), mode)
    moved = _axes_first(source, axes)
    lead, rest = moved.shape[: len(axes)], moved.shape[len(axes) :]
    shape = update.shape[: update.ndim - source.ndim]
    flat = torch.zeros(shape, dtype=torch.long, device=source.device)
    for place, size in zip(places, lead, strict=True):
        flat = flat * size + _wrapped(place, size)
    rows = moved.reshape(math.prod(lead), -1)
    written = _written(rows, flat.reshape(-1), update.reshape(math.prod(shape), -1), mode)
    order = [*axes, *(axis for axis in range(source.ndim) if axis not in axes)]
    inverse = [order.index(axis) for axis in range(source.ndim)]
    return written.reshape([*lead, *rest]).permute(inverse)


def _written(rows: Tensor, places: Tensor, update: Tensor, mode: int) -> Tensor:
    """Return ROWS with the rows of UPDATE written at PLACES."""
    if mode not in REDUCED:
        return rows.index_put((places,), update)
    if REDUCED[mode] == "sum":
        return rows.index_add(0, places, update)
    wide = places[:, None].expand(update.shape)
    return rows.scatter_reduce(0, wide, update, reduce=REDUCED[mode])


@primitive("DynamicSlice")
def _dynamic_slice(call: Call) -> Tensor:
    made, starts = call.inputs
    axes, sizes = call.arguments
    for place, axis in enumerate(axes):
        chosen = starts[place] + torch.arange(sizes[axis], device=made.device)
        made = made.index_select(axis, chosen)
    for axis, size in enumerate(sizes):
        if axis not in axes:
            made = made.narrow(axis, 0, size)
    return made


@primitive("DynamicSliceUpdate", refuses=lambda arguments, _: _several(arguments[0]))
def _dynamic_slice_update(call: Call) -> Tensor:
    source, update, starts = call.inputs
    ((axis,),) = call.arguments
    place: list[Any] = [slice(0, size) for size in update.shape]
    place[axis] = (starts[0] + torch.arange(update.shape[axis], device=source.device)).long()
    made = source.clone()
    made[tuple(place)] = update
    return made


def _several(axes: Sequence[int]) -> str | None:
    return "starts along several axes" if len(axes) > 1 else None


@primitive("MaskedScatter", refuses=lambda _, shapes: _batched(shapes[0]))
def _masked_scatter(call: Call) -> Tensor:
    source, mask, update = call.inputs
    return source.masked_scatter(mask.expand(source.shape), update)


def _batched(shape: Sequence[Any]) -> str | None:
    return None if shape[0] == 1 else "several masks at once"


@primitive("SearchSorted")
def _search_sorted(call: Call) -> Tensor:
    ordered, wanted = call.inputs
    return torch.searchsorted(ordered, wanted.contiguous(), right=call.arguments[0])
