"""Patches of images as columns and back, and channels moved into space and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import mlx.core as mx

from ..axes import repeated
from ..registry import operation

Sizes = int | Sequence[int]


def _offsets(
    kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[slice, ...]]:
    """Yield for every element of a patch where it lies in all patches: a slice of each axis."""
    for place in product(*map(range, kernel)):
        starts = [k * d for k, d in zip(place, dilation, strict=True)]
        yield tuple(
            slice(start, start + (count - 1) * step + 1, step)
            for start, count, step in zip(starts, counts, stride, strict=True)
        )


def _counts(
    sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]
) -> list[int]:
    """Return how many patches fit along each axis of so many padded elements."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    return [
        (size - span) // step + 1 for size, span, step in zip(sizes, spans, stride, strict=True)
    ]


@operation("im2col")
def _im2col(
    self: mx.array, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> mx.array:
    """Turn ``(batch, channels, height, width)`` into ``(batch, channels * elements, patches)``."""
    kernel, dilated, pads, steps = (
        repeated(s, 2) for s in (kernel_size, dilation, padding, stride)
    )
    images = self if self.ndim == 4 else self[None]
    padded = mx.pad(images, [(0, 0), (0, 0), *((p, p) for p in pads)])
    counts = _counts(padded.shape[2:], kernel, dilated, steps)
    places = _offsets(kernel, dilated, steps, counts)
    parts = mx.stack([padded[(..., *place)] for place in places], axis=2)
    elements = images.shape[1] * kernel[0] * kernel[1]
    columns = parts.reshape(images.shape[0], elements, counts[0] * counts[1])
    return columns if self.ndim == 4 else columns[0]


@operation("col2im")
def _col2im(
    self: mx.array,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> mx.array:
    """Add patches, shape ``(batch, channels * elements, patches)``, up where they overlap."""
    kernel, dilated, pads, steps = (
        repeated(s, 2) for s in (kernel_size, dilation, padding, stride)
    )
    sizes = [size + 2 * pad for size, pad in zip(repeated(output_size, 2), pads, strict=True)]
    counts = _counts(sizes, kernel, dilated, steps)
    columns = self if self.ndim == 3 else self[None]
    channels = columns.shape[1] // (kernel[0] * kernel[1])
    parts = columns.reshape(columns.shape[0], channels, kernel[0] * kernel[1], *counts)
    image = mx.zeros((columns.shape[0], channels, *sizes), self.dtype)
    for k, place in enumerate(_offsets(kernel, dilated, steps, counts)):
        image = image.at[(slice(None), slice(None), *place)].add(parts[:, :, k])
    inner = [slice(pad, size - pad) for size, pad in zip(sizes, pads, strict=True)]
    image = image[(..., *inner)]
    return image if self.ndim == 3 else image[0]


@operation("pixel_shuffle")
def _pixel_shuffle(self: mx.array, upscale_factor: int) -> mx.array:
    *batch, channels, height, width = self.shape
    r = upscale_factor
    split = self.reshape(-1, channels // r**2, r, r, height, width).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(*batch, channels // r**2, height * r, width * r)


@operation("pixel_unshuffle")
def _pixel_unshuffle(self: mx.array, downscale_factor: int) -> mx.array:
    *batch, channels, height, width = self.shape
    r = downscale_factor
    split = self.reshape(-1, channels, height // r, r, width // r, r).transpose(0, 1, 3, 5, 2, 4)
    return split.reshape(*batch, channels * r**2, height // r, width // r)


@operation("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(self: mx.array, groups: int) -> mx.array:
    split = self.reshape(self.shape[0], groups, self.shape[1] // groups, -1)
    return mx.swapaxes(split, 1, 2).reshape(self.shape)
