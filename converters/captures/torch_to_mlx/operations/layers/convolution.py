"""Convolutions. torch keeps channels at axis 1, MLX last: axes are moved around the MLX call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import mlx.core as mx

from ...dtypes import is_float
from ..axes import repeated
from ..gradients import on_cpu, spread
from ..registry import operation, register
from .taps import Steps, convolved, stretched

Sizes = int | Sequence[int]
MOST_GROUPS: Final = 64  # that become an operation each


class Window(NamedTuple):
    """How a kernel moves over the spatial axes; one number per axis, or one for all."""

    stride: Sizes = 1
    padding: Sizes | str = 0
    dilation: Sizes = 1
    groups: int = 1
    output_padding: Sizes = 0


def _window(options: dict[str, Any]) -> Window:
    """Return OPTIONS with tuples for lists, so that what is found out of them can be kept."""
    hashable: dict[str, Any] = {
        key: tuple(it) if isinstance(it, list) else it for key, it in options.items()
    }
    return Window(**hashable)


def channels_last(ndim: int) -> list[int]:
    """Return the order of axes that moves axis 1 to the end."""
    return [0, *range(2, ndim), 1]


def _pads(window: Window, kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after each axis; ``same`` may add one more after."""
    count = len(kernel)
    if window.padding == "same":
        spans = [d * (k - 1) for d, k in zip(repeated(window.dilation, count), kernel, strict=True)]
        return [span // 2 for span in spans], [span - span // 2 for span in spans]
    both = repeated(0 if isinstance(window.padding, str) else window.padding, count)
    return both, both


def _forward(x: mx.array, weight: mx.array, window: Window) -> mx.array:
    steps = _steps(window, weight.shape[2:])
    weight = weight.transpose(channels_last(weight.ndim))
    if on_cpu() and window.groups == 1:
        return convolved(x, weight, steps)
    return mx.conv_general(
        x,
        weight,
        stride=steps.stride,
        padding=steps.padding,
        kernel_dilation=steps.dilation,
        groups=window.groups,
    )


@lru_cache(maxsize=1024)  # found again in each call, it would take longer than MLX's graph does
def _steps(window: Window, kernel: tuple[int, ...]) -> Steps:
    stride, dilation = (repeated(n, len(kernel)) for n in (window.stride, window.dilation))
    return Steps(stride, _pads(window, kernel), dilation)


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
    y = _stretched(
        mx.pad(x, [(0, 0), *after, (0, 0)]) if any(extra) else x,
        _flippable(weight, window.groups).transpose(channels_last(weight.ndim)),
        Steps(
            stride, _both([max(n - p, 0) for n, p in zip(spans, padding, strict=True)]), dilation
        ),
        window.groups,
    )
    cuts = [max(p - span, 0) for span, p in zip(spans, padding, strict=True)]
    region = [slice(cut, cut + size) for cut, size in zip(cuts, sizes, strict=True)]
    return y[(slice(None), *region)]


def _both(padding: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return padding, padding


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
        padding=list(steps.padding[0]),
        kernel_dilation=list(steps.dilation),
        input_dilation=list(steps.stride),
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
) -> mx.array:
    """Convolve X, shape ``(batch, channels, ...)`` or without the batch, in torch's layout."""
    if not is_float(x):
        x, weight = x.astype(mx.float32), weight.astype(mx.float32)
    batched = x if x.ndim == weight.ndim else x[None]
    moved = batched.transpose(channels_last(batched.ndim))
    y = _in_groups(_transposed if transposed else _forward, moved, weight, window)
    y = y if bias is None else y + spread(bias, y.shape)
    y = mx.moveaxis(y, -1, 1)
    return y if x.ndim == weight.ndim else y[0]


def _convolution(
    input_: mx.array, weight: mx.array, bias: mx.array | None = None, **window: Any
) -> mx.array:
    return convolve(input_, weight, bias, _window(window))


def _convolution_transpose(
    input_: mx.array, weight: mx.array, bias: mx.array | None = None, **window: Any
) -> mx.array:
    return convolve(input_, weight, bias, _window(window), transposed=True)


@operation("convolution")
def _any_convolution(
    input_: mx.array, weight: mx.array, bias: mx.array | None, transposed: bool, **window: Any
) -> mx.array:
    return convolve(input_, weight, bias, _window(window), transposed)


register({f"conv{n}d conv{n}d.padding": _convolution for n in (1, 2, 3)})
register(
    {
        "conv_transpose1d": _convolution_transpose,
        "conv_transpose2d.input": _convolution_transpose,
        "conv_transpose3d.input": _convolution_transpose,
    }
)
