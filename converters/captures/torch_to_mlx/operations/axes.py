"""Axes as torch counts them: negative ones, none for all, and tensors without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
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


@cache
def channels_last(ndim: int) -> tuple[int, ...]:
    """Return the order of axes that moves axis 1 to the end.

    >>> channels_last(4), channels_first(4)
    ((0, 2, 3, 1), (0, 3, 1, 2))
    """
    return (0, *range(2, ndim), 1)


@cache
def channels_first(ndim: int) -> tuple[int, ...]:
    """Return the order of axes that moves the last one to axis 1."""
    return (0, ndim - 1, *range(1, ndim - 1))


def to_last(x: mx.array, last: bool) -> mx.array:
    """Return X, its channels at axis 1, with them as the last axis; as it is where they lie there (LAST)."""
    return x if last else x.transpose(channels_last(x.ndim))


def from_last(x: mx.array, last: bool) -> mx.array:
    """Return X, its channels as the last axis, with them at axis 1; as it is where they stay there (LAST)."""
    return x if last else x.transpose(channels_first(x.ndim))


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
