"""Convolutions. torch keeps channels at axis 1, MLX last: axes are moved around the MLX call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import mlx.core as mx

from ..axes import channels_last, from_last, repeated, to_last
from ..gradients import on_cpu, spread
from ..registry import made_by, operation
from .taps import Steps, by_mlx, convolved, stretched

Sizes = int | Sequence[int]
_FLOATS: Final = frozenset({mx.float16, mx.bfloat16, mx.float32, mx.float64, mx.complex64})
MOST_GROUPS: Final = 64  # that become an operation each


class Window(NamedTuple):
    """How a kernel moves over the spatial axes; one number per axis, or one for all."""

    stride: Sizes = 1
    padding: Sizes | str = 0
    dilation: Sizes = 1
    groups: int = 1
    output_padding: Sizes = 0


def _pads(window: Window, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis; ``same`` may add one more after."""
    count = len(kernel)
    if window.padding == "same":
        spans = [d * (k - 1) for d, k in zip(repeated(window.dilation, count), kernel, strict=True)]
        return [span // 2 for span in spans], [span - span // 2 for span in spans]
    both = repeated(0 if isinstance(window.padding, str) else window.padding, count)
    return both, both


def _forward(x: mx.array, weight: mx.array, window: Window) -> mx.array:
    steps, plain = _steps(window, weight.shape[2:])
    weight = weight.transpose(channels_last(weight.ndim))
    if window.groups > 1 or plain or not on_cpu():
        return by_mlx(x, weight, steps, window.groups)
    return convolved(x, weight, steps)


@lru_cache(maxsize=1024)  # found again in each call, it would take longer than MLX's graph does
def _steps(window: Window, kernel: tuple[int, ...]) -> tuple[Steps, bool]:
    """Return how a KERNEL moves, and whether that is plain along one or two axes."""
    stride, dilation = (repeated(n, len(kernel)) for n in (window.stride, window.dilation))
    steps = Steps(stride, _pads(window, kernel), dilation)
    return steps, steps.plain and len(kernel) < 3


def _transposed(x: mx.array, weight: mx.array, window: Window) -> mx.array:
    """Convolve the stretched input with the flipped kernel, shape ``(in, out / groups, ...)``.

    ``output_padding`` keeps more of the end. It comes from zeros after the input, not from uneven
    padding, of which MLX computes wrong gradients.
    """
    count = weight.ndim - 2
    stride, dilation = repeated(window.stride, count), repeated(window.dilation, count)
    spans = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    padding = repeated(_plain(window.padding), count)
    extra = repeated(window.output_padding, count)
    sizes = [
        (n - 1) * s - 2 * p + span + e + 1
        for n, s, p, span, e in zip(x.shape[1:-1], stride, padding, spans, extra, strict=True)
    ]
    after = [(0, -(-e // s)) for e, s in zip(extra, stride, strict=True)]
    around = [max(n - p, 0) for n, p in zip(spans, padding, strict=True)]
    y = _stretched(
        mx.pad(x, [(0, 0), *after, (0, 0)]) if any(extra) else x,
        _flippable(weight, window.groups).transpose(channels_last(weight.ndim)),
        Steps(stride, (around, around), dilation),
        window.groups,
    )
    cuts = [max(p - span, 0) for span, p in zip(spans, padding, strict=True)]
    region = [slice(cut, cut + size) for cut, size in zip(cuts, sizes, strict=True)]
    return y[(slice(None), *region)]


def _stretched(x: mx.array, weight: mx.array, steps: Steps, groups: int) -> mx.array:
    """Convolve X, its elements a stride apart, with WEIGHT, flipped: both channels last."""
    if on_cpu() and groups == 1:
        flip = slice(None, None, -1)
        flipped = weight[(slice(None), *[flip] * (weight.ndim - 2))]
        return convolved(
            stretched(x, steps.stride), flipped, steps._replace(stride=[1] * (weight.ndim - 2))
        )
    return mx.conv_general(
        x,
        weight,
        stride=1,
        padding=steps.padding[0],
        kernel_dilation=steps.dilation,
        input_dilation=steps.stride,
        groups=groups,
        flip=True,
    )


def _flippable(weight: mx.array, groups: int) -> mx.array:
    """Return a transposed convolution's weight with outputs first, as a forward one has it."""
    entering, leaving, *kernel = weight.shape
    grouped = weight.reshape(groups, entering // groups, leaving, *kernel)
    return mx.swapaxes(grouped, 1, 2).reshape(groups * leaving, entering // groups, *kernel)


def _plain(padding: Sizes | str) -> Sizes:
    if isinstance(padding, str):
        raise NotImplementedError("transposed convolution with named padding")
    return padding


def _in_groups(
    convolution: Callable[[mx.array, mx.array, Window], mx.array],
    x: mx.array,
    weight: mx.array,
    window: Window,
) -> mx.array:
    """Convolve group by group where MLX knows no groups, volumes, or none that are fast."""
    if window.groups == 1 or (weight.ndim < 5 and not _slow_in_groups(x, window.groups)):
        return convolution(x, weight, window)
    channels, kernels = (
        mx.split(part, window.groups, axis) for part, axis in ((x, -1), (weight, 0))
    )
    alone = window._replace(groups=1)
    parts = [convolution(*pair, alone) for pair in zip(channels, kernels, strict=True)]
    return mx.concatenate(parts, axis=-1)


def _slow_in_groups(x: mx.array, groups: int) -> bool:
    """Tell whether groups of several channels are on the CPU, where one by one takes less time."""
    return on_cpu() and groups <= MOST_GROUPS and x.shape[-1] > groups


def convolve(
    x: mx.array,
    weight: mx.array,
    bias: mx.array | None,
    window: Window,
    transposed: bool = False,
    last: bool = False,
) -> mx.array:
    """Convolve X, shape ``(batch, channels, ...)`` or without the batch, or with channels LAST."""
    if x.dtype not in _FLOATS:
        x, weight = x.astype(mx.float32), weight.astype(mx.float32)
    batched = x if x.ndim == weight.ndim else x[None]
    moved = to_last(batched, last)
    y = _in_groups(_transposed if transposed else _forward, moved, weight, window)
    y = y if bias is None else y + spread(bias, y.shape)
    y = from_last(y, last)
    return y if x.ndim == weight.ndim else y[0]


def _convolving(  # noqa: PLR0913, PLR0917 - the schemas'
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_padding: Sizes = 0,
    transposed: bool = False,
    last: bool = False,
) -> Callable[..., mx.array]:
    given: tuple[Any, ...] = (stride, padding, dilation, groups, output_padding)
    numbers: list[Any] = [tuple(it) if isinstance(it, list) else it for it in given]
    window = Window(*numbers)

    def convolution(input_: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
        return convolve(input_, weight, bias, window, transposed, last)

    return convolution


_turning = partial(_convolving, transposed=True)


@operation("convolution", *(f"conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", ".padding")))
@made_by(_convolving)
def _convolution(
    input_: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    last: bool = False,
    **window: Any,
) -> mx.array:
    return _convolving(**window, last=last)(input_, weight, bias)


@operation("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
@made_by(_turning)
def _convolution_transpose(
    input_: mx.array,
    weight: mx.array,
    bias: mx.array | None = None,
    last: bool = False,
    **window: Any,
) -> mx.array:
    return _turning(**window, last=last)(input_, weight, bias)
