"""Kernels that read or write at positions: slices, gathers, scatters."""

# ruff: noqa: ARG001, PLR0913, PLR0917, PLW0108  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from .kernel import Bools, Function, Ints, scalar


def positions(
    x: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None,
    begin_mask: Bools | None,
    end_mask: Bools | None,
    squeeze_mask: Bools | None,
) -> list[Tensor]:
    """Return the positions that a slice takes on every axis, as Python's slices count."""
    no, one = (False,) * len(begin), (1,) * len(begin)
    masks = zip(begin_mask or no, end_mask or no, squeeze_mask or no, strict=True)
    result = []
    for axis, (whole, to_the_end, single) in enumerate(masks):
        first, size = begin[axis], x.shape[axis]
        start, stop = None if whole else first, None if to_the_end else end[axis]
        taken = range(*slice(start, stop, (stride or one)[axis]).indices(size))
        result.append(torch.tensor([first % size] if single else list(taken), dtype=torch.long))
    return result


def slice_by_index(
    x: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Tensor:
    """Slice as numpy does; masks say "from the start", "to the end", "one position, drop the axis"."""
    taken = positions(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    for axis, index in enumerate(taken):
        x = x.index_select(axis, index)
    dropped = [axis for axis, single in enumerate(squeeze_mask or ()) if single]
    return x.squeeze(dropped) if dropped else x


def slice_update(
    x: Tensor,
    update: Tensor,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Bools | None = None,
    end_mask: Bools | None = None,
    squeeze_mask: Bools | None = None,
) -> Tensor:
    """Return X with a slice replaced by UPDATE."""
    taken = positions(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    grid = torch.meshgrid(*taken, indexing="ij")
    result = x.clone()
    result[grid] = update.reshape(grid[0].shape).to(x.dtype)
    return result


def slice_by_size(x: Tensor, begin: Ints, size: Ints) -> Tensor:
    """Take SIZE positions from BEGIN on every axis; -1 takes what is left."""
    for axis, (start, count) in enumerate(zip(begin, size, strict=True)):
        start %= x.shape[axis]  # noqa: PLW2901
        x = x.narrow(axis, start, x.shape[axis] - start if count == -1 else count)
    return x


def wrapped(indices: Tensor, size: int) -> Tensor:
    """Count negative indices from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def batched(function: Function, batch_dims: int, x: Tensor, indices: Tensor) -> Tensor:
    """Apply FUNCTION of (x, indices) to each entry of their first BATCH_DIMS common axes."""
    if batch_dims == 0:
        result: Tensor = function(x, indices)
        return result
    return torch.stack(
        [batched(function, batch_dims - 1, a, b) for a, b in zip(x, indices, strict=True)]
    )


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Replace AXIS by the axes of INDICES."""
    taken = x.index_select(axis, wrapped(indices, x.shape[axis]).reshape(-1))
    return taken.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def gather(
    x: Tensor,
    indices: Tensor,
    axis: int = 0,
    batch_dims: int = 0,
    validate_indices: bool = False,
) -> Tensor:
    """Take INDICES along AXIS, separately for the first BATCH_DIMS axes."""
    axis %= x.dim()
    shared = batch_dims % indices.dim() if batch_dims < 0 else batch_dims
    return batched(lambda a, b: take(a, b, axis - shared), shared, x, indices)


def gather_along_axis(
    x: Tensor,
    indices: Tensor,
    axis: int = 0,
    validate_indices: bool = False,
) -> Tensor:
    """Take one element per element of INDICES along AXIS; the other axes broadcast."""
    axis %= x.dim()
    sizes = zip(x.shape, indices.shape, strict=True)
    common = [-1 if i == axis else max(pair) for i, pair in enumerate(sizes)]
    index = wrapped(indices, x.shape[axis]).expand(common)
    return torch.gather(x.expand(common), axis, index)


def take_points(x: Tensor, indices: Tensor) -> Tensor:
    """Take the entries of X whose leading coordinates are the rows of INDICES."""
    columns = range(indices.shape[-1])
    return x[tuple(wrapped(indices[..., i], x.shape[i]) for i in columns)]


def gather_nd(
    x: Tensor,
    indices: Tensor,
    batch_dims: int = 0,
    validate_indices: bool = False,
) -> Tensor:
    """Take entries by coordinates, separately for the first BATCH_DIMS axes."""
    return batched(take_points, batch_dims, x, indices)


COMBINE: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "add": lambda old, new: old + new,
    "div": lambda old, new: old / new if old.is_floating_point() else old // new,
    "max": torch.maximum,
    "min": torch.minimum,
    "mul": lambda old, new: old * new,
    "sub": lambda old, new: old - new,
    "update": lambda old, new: new,  # noqa: ARG005
}


def write(data: Tensor, cells: Tensor, updates: Tensor, mode: str) -> Tensor:
    """Return DATA with the flat positions CELLS combined with UPDATES, one after another."""
    result, combine = data.reshape(-1).clone(), COMBINE[mode]
    values = updates.expand(cells.shape).reshape(-1).to(data.dtype)
    for cell, value in zip(cells.reshape(-1).tolist(), values, strict=True):
        result[cell] = combine(result[cell], value)
    return result.reshape(data.shape)


def numbered(data: Tensor) -> Tensor:
    """Number the elements of DATA in order, in its shape."""
    return torch.arange(data.numel()).reshape(data.shape)


def require_positive(indices: Tensor, validate_indices: bool | None) -> None:
    """Refuse negative INDICES of operations of iOS 17, which alone have an input VALIDATE_INDICES.

    Older ones count them from the end; of these the documentation says that they are out of range, and
    what is written then is undefined, whatever the input says.

    Raises:
        ValueError: there are some.
    """
    if validate_indices is not None and bool((indices < 0).any()):
        raise ValueError(
            f"index {int(indices.min())} is negative, which iOS 17 takes for out of range"
        )


def scatter(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """Write UPDATES at INDICES along AXIS."""
    require_positive(indices, validate_indices)
    return write(data, take(numbered(data), indices, axis % data.dim()), updates, mode)


def scatter_along_axis(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """Write one element per element of INDICES along AXIS."""
    require_positive(indices, validate_indices)
    axis %= data.dim()
    cells = torch.gather(numbered(data), axis, wrapped(indices, data.shape[axis]))
    return write(data, cells, updates, mode)


def scatter_nd(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    mode: str = "add",
    validate_indices: bool | None = None,
) -> Tensor:
    """Write UPDATES at coordinates."""
    require_positive(indices, validate_indices)
    return write(data, take_points(numbered(data), indices), updates, mode)


def one_hot(
    indices: Tensor,
    one_hot_vector_size: int,
    axis: int = -1,
    on_value: Any = 1,
    off_value: Any = 0,
) -> Tensor:
    """Mark each index on a new axis; an index out of range marks nothing."""
    marks = indices.unsqueeze(-1) == torch.arange(one_hot_vector_size)
    on, off = torch.tensor(scalar(on_value)), torch.tensor(scalar(off_value))
    return torch.where(marks, on, off).movedim(-1, axis)


KERNELS: Final[Mapping[str, Function]] = {
    "non_zero": lambda x: torch.nonzero(x),
    **{
        function.__name__: function
        for function in (
            gather,
            gather_along_axis,
            gather_nd,
            one_hot,
            scatter,
            scatter_along_axis,
            scatter_nd,
            slice_by_index,
            slice_by_size,
            slice_update,
        )
    },
}
