"""Kernels that move, join, split or make elements without looking at them."""

# ruff: noqa: PLW0108  (a kernel has the names of its MIL operation's inputs)
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .kernel import Function, Ints, Tensors, scalar


def reshape(x: Tensor, shape: Ints) -> Tensor:
    """Reshape; 0 copies the input's size, counted from the last axis, and -1 takes what is left.

    Beyond the input's first axis 0 stands for 1. Of an empty input 0 is 0.
    """
    if not x.numel():
        return x.reshape(shape)
    sizes = [*[1] * len(shape), *x.shape][-len(shape) :] if shape else []
    return x.reshape([old if size == 0 else size for old, size in zip(sizes, shape, strict=True)])


def reshape_like(
    x: Tensor, ref_tensors: Tensors, begins: Tensors, ends: Tensors, end_masks: Tensors
) -> Tensor:
    """Reshape to slices of other tensors' shapes, joined."""
    shape: list[int] = []
    for reference, *bounds in zip(ref_tensors, begins, ends, end_masks, strict=True):
        begin, end, to_the_end = (int(scalar(bound)) for bound in bounds)
        shape += reference.shape[begin : None if to_the_end else end]
    return x.reshape(shape)


def expand_dims(x: Tensor, axes: Ints) -> Tensor:
    """Insert axes of size 1, counted in the result."""
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def squeeze(x: Tensor, axes: Ints | None = None) -> Tensor:
    """Remove axes of size 1, all of them where none are given."""
    chosen = axes or [axis for axis, size in enumerate(x.shape) if size == 1]
    for axis in sorted((axis % x.dim() for axis in chosen), reverse=True):
        x = x.squeeze(axis)
    return x


def concat(values: Tensors, axis: int, interleave: bool = False) -> Tensor:
    """Join along AXIS; interleaved, the first of each comes first, then the second of each."""
    values = [value.reshape(1) if value.dim() == 0 else value for value in values]
    if not interleave:
        return torch.cat(values, axis)
    axis %= values[0].dim()
    return torch.stack(values, axis + 1).flatten(axis, axis + 1)


def split(
    x: Tensor, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None
) -> tuple[Tensor, ...]:
    """Cut along AXIS into equal parts or into parts of the given sizes."""
    return torch.split(x, list(split_sizes or ()) or x.shape[axis] // (num_splits or 1), axis)


def reverse_sequence(x: Tensor, lengths: Ints, seq_axis: int = 0, batch_axis: int = 0) -> Tensor:
    """Flip the first LENGTHS[i] positions of example i."""
    y = x.movedim((batch_axis, seq_axis), (0, 1)).clone()
    for example, length in zip(y, lengths, strict=True):
        example[:length] = example[:length].flip(0)
    return y.movedim((0, 1), (batch_axis, seq_axis))


def band_part(x: Tensor, lower: int = -1, upper: int = -1) -> Tensor:
    """Zero what lies more than LOWER below or UPPER above the diagonal; -1 keeps all."""
    below = torch.arange(x.shape[-2])[:, None] - torch.arange(x.shape[-1])
    keep = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return torch.where(keep, x, torch.zeros_like(x))


def mirror(positions: Tensor, size: int) -> Tensor:
    """Reflect positions at the edges, without repeating the edge itself."""
    positions = positions.abs()
    return torch.where(positions >= size, 2 * (size - 1) - positions, positions)


def pad(x: Tensor, pad: Ints, mode: str = "constant", constant_val: float = 0.0) -> Tensor:
    """Pad the last axes with a constant, by reflection or by replication of the edge."""
    pairs = [pad[i : i + 2] for i in range(0, len(pad), 2)]
    if mode == "constant":
        flat = [amount for pair in reversed(pairs) for amount in pair]
        return F.pad(x, flat, value=constant_val)
    for axis, (before, after) in enumerate(pairs, start=x.dim() - len(pairs)):
        size = x.shape[axis]
        positions = torch.arange(-before, size + after)
        edge = mirror(positions, size) if mode == "reflect" else positions.clamp(0, size - 1)
        x = x.index_select(axis, edge)
    return x


def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    """Move blocks of space into channels; the position in the block varies slowest."""
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block_size, block_size, w // block_size, block_size)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // block_size, w // block_size)


def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    """Move channels into blocks of space; undoes ``space_to_depth``."""
    n, c, h, w = x.shape
    depth = c // block_size**2
    blocks = x.reshape(n, block_size, block_size, depth, h, w)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, depth, h * block_size, w * block_size)


def space_to_batch(x: Tensor, block_shape: Ints, paddings: Ints) -> Tensor:
    """Pad space, then move its blocks into the batch."""
    top, bottom, left, right = paddings
    x = F.pad(x, [left, right, top, bottom])
    (n, c, h, w), (a, b) = x.shape, block_shape
    blocks = x.reshape(n, c, h // a, a, w // b, b)
    return blocks.permute(3, 5, 0, 1, 2, 4).reshape(n * a * b, c, h // a, w // b)


def batch_to_space(x: Tensor, block_shape: Ints, crops: Ints) -> Tensor:
    """Move blocks of the batch into space, then crop; undoes ``space_to_batch``."""
    (n, c, h, w), (a, b) = x.shape, block_shape
    top, bottom, left, right = crops
    blocks = x.reshape(a, b, n // (a * b), c, h, w).permute(2, 3, 4, 0, 5, 1)
    full = blocks.reshape(n // (a * b), c, h * a, w * b)
    return full[..., top : h * a - bottom, left : w * b - right]


def sliding_windows(x: Tensor, axis: int, size: int, stride: int = 1) -> Tensor:
    """Return all windows of SIZE along AXIS, on a new axis after it."""
    axis %= x.dim()
    return x.unfold(axis, size, stride).movedim(-1, axis + 1)


KERNELS: Final[Mapping[str, Function]] = {
    "fill": lambda shape, value=0.0: torch.full(shape, scalar(value)),
    "fill_like": lambda ref_tensor, value=0.0: torch.full(ref_tensor.shape, scalar(value)),
    "flatten2d": lambda x, axis=1: x.reshape(x.shape[:axis].numel(), -1),
    "pixel_shuffle": lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor),
    "pixel_unshuffle": lambda x, downscale_factor: F.pixel_unshuffle(x, downscale_factor),
    "range_1d": lambda end, start, step: torch.arange(scalar(start), scalar(end), scalar(step)),
    "reverse": lambda x, axes=None: x.flip(axes or tuple(range(x.dim()))),
    "shape": lambda x: torch.tensor(x.shape, dtype=torch.int32),
    "stack": lambda values, axis: torch.stack(values, axis),
    "tile": lambda x, reps: x.repeat(reps),
    "transpose": lambda x, perm: x.permute(perm),
    **{
        function.__name__: function
        for function in (
            band_part,
            batch_to_space,
            concat,
            depth_to_space,
            expand_dims,
            pad,
            reshape,
            reshape_like,
            reverse_sequence,
            sliding_windows,
            space_to_batch,
            space_to_depth,
            split,
            squeeze,
        )
    },
}
