"""Padding of the last axes, given from the last axis backwards."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..axes import at
from ..registry import operation, register


@operation("constant_pad_nd")
def _constant(self: mx.array, pad: Sequence[int], value: float = 0) -> mx.array:
    """Pad with VALUE; negative amounts cut."""
    widths = [(0, 0)] * self.ndim
    for k, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = self.ndim - 1 - k
        widths[axis] = (max(before, 0), max(after, 0))
        self = self[at(self, axis, slice(max(-before, 0), self.shape[axis] - max(-after, 0)))]
    return mx.pad(self, widths, constant_values=mx.array(value, self.dtype))


def _source(places: mx.array, size: int, mode: str) -> mx.array:
    """Return which element stands at PLACES, counted from the first one of SIZE."""
    if mode == "replicate":
        return mx.clip(places, 0, size - 1)
    if mode == "circular":
        return mx.remainder(places, size)
    mirrored = mx.abs(places)
    return mx.where(mirrored >= size, 2 * (size - 1) - mirrored, mirrored)


def _by_index(x: mx.array, padding: Sequence[int], mode: str) -> mx.array:
    if mode == "circular":  # what is cut off does not come round again
        x = _constant(x, [min(width, 0) for width in padding])
        padding = [max(width, 0) for width in padding]
    for k, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        axis = x.ndim - 1 - k
        size = x.shape[axis]
        x = mx.take(x, _source(mx.arange(-before, size + after), size, mode), axis=axis)
    return x


@operation("pad")
def _pad(
    self: mx.array, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> mx.array:
    return _constant(self, pad, value or 0) if mode == "constant" else _by_index(self, pad, mode)


for _n in (1, 2, 3):
    register(
        {
            f"reflection_pad{_n}d": lambda self, padding: _by_index(self, padding, "reflect"),
            f"replication_pad{_n}d": lambda self, padding: _by_index(self, padding, "replicate"),
        }
    )
