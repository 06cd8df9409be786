"""Convolutions on the CPU by matrix products, one for each element of the kernel.

MLX's CPU has fast code for what is neither dilated nor stretched. The rest, and so the gradient of what has
strides, takes it several times as long as these products do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from typing import Final, NamedTuple

import mlx.core as mx

from ..axes import at
from ..gradients import with_gradient

MOST: Final = 128  # elements of a kernel; of more, there is more work in moving than in multiplying
VOLUME: Final = 5  # axes; over so many places, sums of float32 err more than torch's do


class Steps(NamedTuple):
    """How a kernel moves: numbers for each axis, padding before and after."""

    stride: list[int]
    padding: tuple[list[int], list[int]]
    dilation: list[int]

    @property
    def plain(self) -> bool:
        """Whether it is neither stretched nor takes more than one step at a time."""
        return max(self.dilation) == max(self.stride) == 1


def convolved(x: mx.array, weight: mx.array, steps: Steps) -> mx.array:
    """Convolve X, shape ``(batch, *sizes, in)``, with WEIGHT, ``(out, *kernel, in)``, on the CPU."""
    dilated, volume = max(steps.dilation) > 1, x.ndim == VOLUME
    many = prod(weight.shape[1:-1]) > MOST or not x.size
    if many or (steps.plain and not volume):
        return by_mlx(x, weight, steps)
    if dilated and not volume:
        return _by_products(x, weight, steps)
    forward = _by_products if dilated else by_mlx
    result: mx.array = with_gradient(
        lambda x, weight: forward(x, weight, steps), partial(_gradient, steps)
    )(x, weight)
    return result


def _gradient(
    steps: Steps, g: mx.array, _: mx.array, x: mx.array, weight: mx.array
) -> tuple[mx.array, ...]:
    dtype = mx.float64 if x.ndim == VOLUME else x.dtype
    exact = x.astype(dtype)
    (of_x,) = mx.vjp(lambda x: _by_products(x, weight, steps), [x], [g])[1]
    (of_weight,) = mx.vjp(
        lambda weight: _by_products(exact, weight, steps), [weight.astype(dtype)], [g.astype(dtype)]
    )[1]
    return of_x, of_weight.astype(weight.dtype)


def by_mlx(x: mx.array, weight: mx.array, steps: Steps, groups: int = 1) -> mx.array:
    """Convolve X with WEIGHT, of which each of GROUPS sees its own channels, by MLX's own operation."""
    return mx.conv_general(x, weight, *steps[:2], steps.dilation, 1, groups)


def _by_products(x: mx.array, weight: mx.array, steps: Steps) -> mx.array:
    padded = mx.pad(x, [(0, 0), *zip(*steps.padding, strict=True), (0, 0)])
    return _along(padded, weight, 1, steps)


def _along(x: mx.array, weight: mx.array, axis: int, steps: Steps) -> mx.array:
    """Convolve X along AXIS and those after it; axis by axis, so that sums of many parts round little."""
    if axis == x.ndim - 1:
        return x @ weight.T
    stride, dilation = steps.stride[axis - 1], steps.dilation[axis - 1]
    length = weight.shape[1]
    reach = x.shape[axis] - dilation * (length - 1)  # how far the first element of the kernel moves
    parts = (
        _along(x[at(x, axis, slice(first, first + reach, stride))], weight[:, k], axis + 1, steps)
        for k, first in enumerate(range(0, dilation * length, dilation))
    )
    return reduce(mx.add, parts)


def stretched(x: mx.array, stride: Sequence[int]) -> mx.array:
    """Put zeros between the elements of X, ``(batch, *sizes, channels)``, so that STRIDE lie apart."""
    for axis, step in enumerate(stride, 1):
        if step > 1 and x.size:
            before, (size, *after) = x.shape[:axis], x.shape[axis:]
            zeros = mx.zeros((*before, size, step - 1, *after), x.dtype)
            apart = mx.concatenate([mx.expand_dims(x, axis + 1), zeros], axis + 1)
            x = apart.reshape(*before, size * step, *after)
            x = x[at(x, axis, slice((size - 1) * step + 1))]
    return x
