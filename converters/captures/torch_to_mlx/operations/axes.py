"""Axes as torch counts them: negative ones, none for all, and tensors without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

Axes = int | Sequence[int] | None


def axis_of(array: mx.array, dim: int) -> int:
    """Return DIM counted from the front; 0 for an array without axes."""
    return dim % array.ndim if array.ndim else 0


def axes_of(array: mx.array, dim: Axes) -> list[int]:
    """Return DIM as a list counted from the front; ``None`` and ``[]`` mean every axis."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(array.ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return [axis_of(array, d) for d in dims] if array.ndim else []


def along(array: mx.array, dim: int, function: Callable[[mx.array, int], Any]) -> Any:
    """Apply FUNCTION (array, axis) -> array of equal shape; one without axes counts as one of one."""
    if array.ndim:
        return function(array, axis_of(array, dim))
    return function(array.reshape(1), 0).reshape(())


def at(array: mx.array, dim: int, key: Any) -> tuple[Any, ...]:
    """Return the index that applies KEY at axis DIM and takes everything before it."""
    return (*[slice(None)] * axis_of(array, dim), key)


def per_channel(vector: mx.array, ndim: int) -> mx.array:
    """Return VECTOR, shape ``(channels,)``, shaped to broadcast along axis 1 of NDIM axes."""
    return vector.reshape([1, -1, *[1] * (ndim - 2)])


def repeated(value: int | Sequence[int], count: int) -> list[int]:
    """Return VALUE for each of COUNT axes: torch writes ``3`` or ``[3]`` for ``[3, 3]``.

    >>> repeated(3, 2), repeated([3], 2), repeated([3, 4], 2)
    ([3, 3], [3, 3], [3, 4])
    """
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values
