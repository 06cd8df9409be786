"""Convolutions, channels last as MLX has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .layers import given
from .registry import Call, primitive, training

FORWARD: Final[tuple[Any, ...]] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: Final[tuple[Any, ...]] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Window(NamedTuple):
    """How a convolution of MLX moves, per spatial axis."""

    stride: Sequence[int]
    low: Sequence[int]
    high: Sequence[int]
    dilation: Sequence[int]
    spread: Sequence[int]  # distance of the elements of the input
    groups: int
    flip: bool


def channels_first(x: Tensor) -> Tensor:
    """Return X with its last axis as the second."""
    return x.movedim(-1, 1)


def channels_last(x: Tensor) -> Tensor:
    """Undo :func:`channels_first`."""
    return x.movedim(1, -1)


@primitive("Convolution")
def _convolution(call: Call) -> Tensor:
    x, weight = map(channels_first, call.inputs)
    window = Window(*call.arguments)
    if window.flip and (made := _transposed(x, weight, window)) is not None:
        return channels_last(made)
    return channels_last(_forward(x, weight, window))


def _forward(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """Convolve as the definition says: spread the input, pad it, turn the kernel."""
    if any(step != 1 for step in window.spread):
        x = _spread(x, window.spread)
    if window.flip:
        weight = weight.flip(list(range(2, weight.ndim)))
    padding: Any = list(window.low)
    if list(window.low) != list(window.high) or min(padding) < 0:
        pairs = list(zip(window.low, window.high, strict=True))
        x, padding = F.pad(x, [size for pair in reversed(pairs) for size in pair]), 0
    convolve = FORWARD[len(window.stride) - 1]
    made: Tensor = convolve(x, weight, None, window.stride, padding, window.dilation, window.groups)
    return made


def _spread(x: Tensor, steps: Sequence[int]) -> Tensor:
    """Return X with zeros between its elements."""
    sizes = [(size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)]
    made = x.new_zeros([*x.shape[:2], *sizes])
    places: tuple[Any, ...] = (..., *[slice(None, None, step) for step in steps])
    made[places] = x
    return made


def _transposed(x: Tensor, weight: Tensor, window: Window) -> Tensor | None:
    """Convolve by torch's transposed convolution, where it can say the same."""
    sizes = [d * (n - 1) for d, n in zip(window.dilation, weight.shape[2:], strict=True)]
    padding = [size - low for size, low in zip(sizes, window.low, strict=True)]
    more = [high - low for low, high in zip(window.low, window.high, strict=True)]
    reach = [max(pair) for pair in zip(window.spread, window.dilation, strict=True)]
    fits = all(0 <= extra < most for extra, most in zip(more, reach, strict=True))
    if min(padding) < 0 or not fits or any(step != 1 for step in window.stride):
        return None
    grouped = weight.reshape(window.groups, -1, *weight.shape[1:]).transpose(1, 2)
    kernel = grouped.reshape(-1, *grouped.shape[2:])
    convolve = TRANSPOSED[len(window.stride) - 1]
    made: Tensor = convolve(
        x, kernel, None, window.spread, padding, more, window.groups, window.dilation
    )
    return made


def pooled(x: Tensor, kind: bool, window: Sequence[Sequence[int]]) -> Tensor:
    """Return maxima (KIND) or means of X, channels last, in windows: kernel, stride, padding."""
    kernel, stride, padding = window
    first = channels_first(x)
    functions: tuple[Any, ...] = (
        (F.max_pool1d, F.max_pool2d, F.max_pool3d)
        if kind
        else (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    )
    made: Tensor = functions[len(kernel) - 1](first, kernel, stride, padding)
    return channels_last(made)


@primitive("Pool")
def _pool(call: Call) -> Tensor:
    largest, *window = call.arguments
    return pooled(call.inputs[0], largest, window)


@primitive("Upsample")
def _upsample(call: Call) -> Tensor:
    made = channels_first(call.inputs[0])
    return channels_last(F.interpolate(made, scale_factor=list(call.arguments[0])))


@primitive("BatchNorm")
def _batch_norm(call: Call) -> Tensor:
    eps, *there = call.arguments
    x, mean, variance, *arrays = call.inputs
    weight, bias = given(arrays, there)
    return channels_last(F.batch_norm(channels_first(x), mean, variance, weight, bias, eps=eps))


@primitive("GroupNorm")
def _group_norm(call: Call) -> Tensor:
    groups, eps, *there = call.arguments
    x, *arrays = call.inputs
    weight, bias = given(arrays, there)
    if training():
        return channels_last(F.group_norm(channels_first(x), groups, weight, bias, eps))
    made = _normalized(x, groups, eps)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


def _normalized(x: Tensor, groups: int, eps: float) -> Tensor:
    """Return X, channels last, normalized by groups: coremltools' own takes no batch that varies."""
    parts = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    rest = parts - parts.mean((1, 3), keepdim=True)
    scale = torch.rsqrt((rest * rest).mean((1, 3), keepdim=True) + eps)
    return (rest * scale).reshape(x.shape)
