"""Joining, splitting and repeating."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from ..axes import at, axis_of
from ..registry import operation, register


@operation("cat", "concat", "concatenate", promote="result")
def _cat(tensors: Sequence[mx.array], dim: int = 0) -> mx.array:
    """Concatenate; torch lets empty vectors join anything."""
    kept = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors[:1]
    return mx.concatenate(list(kept), axis=dim) if len(kept) > 1 else kept[0]


@operation("stack", promote="result")
def _stack(tensors: Sequence[mx.array], dim: int = 0) -> mx.array:
    return mx.stack(list(tensors), axis=dim)


def _parts(x: mx.array, sizes: Sequence[int], dim: int) -> tuple[mx.array, ...]:
    ends = list(accumulate(sizes))[:-1]
    return tuple(mx.split(x, ends, axis=axis_of(x, dim))) if ends else (x,)


@operation("split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(
    self: mx.array, split_sizes: Sequence[int], dim: int = 0
) -> tuple[mx.array, ...]:
    return _parts(self, split_sizes, dim)


@operation("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor")
def _split(self: mx.array, split_size: int, dim: int = 0) -> tuple[mx.array, ...]:
    length = self.shape[axis_of(self, dim)]
    starts = range(0, length, split_size) if split_size else (0,)
    return _parts(self, [min(split_size, length - start) for start in starts], dim)


@operation("unbind.int", "unbind_copy.int")
def _unbind(self: mx.array, dim: int = 0) -> tuple[mx.array, ...]:
    return tuple(self[at(self, dim, i)] for i in range(self.shape[axis_of(self, dim)]))


@operation("repeat_interleave.self_int")
def _repeat_interleave(
    self: mx.array,
    repeats: int,
    dim: int | None = None,
    output_size: int | None = None,  # noqa: ARG001 - follows from the rest
) -> mx.array:
    if dim is None:
        return mx.repeat(self.reshape(-1), repeats, axis=0)
    return mx.repeat(self, repeats, axis=axis_of(self, dim))


@operation("roll")
def _roll(self: mx.array, shifts: Sequence[int], dims: Sequence[int] = ()) -> mx.array:
    if not dims:
        return mx.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = mx.roll(self, shift, dim)
    return self


@operation("flip")
def _flip(self: mx.array, dims: Sequence[int]) -> mx.array:
    for dim in dims if self.ndim else ():
        self = self[at(self, dim, slice(None, None, -1))]
    return self


register({"repeat tile": mx.tile}, arity=2)
register(
    {
        "broadcast_tensors": lambda tensors: tuple(mx.broadcast_arrays(*tensors)),
        "meshgrid meshgrid.indexing": lambda tensors, indexing="ij": tuple(
            mx.meshgrid(*[tensor.reshape(-1) for tensor in tensors], indexing=indexing)
        ),
    }
)
