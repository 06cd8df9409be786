"""Kernels that slide a window: convolutions and pools in one, two or three dimensions."""

# ruff: noqa: PLR0913, PLR0917  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .elementwise import per_channel
from .kernel import Function, Ints

CONVOLVE: Final = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: Final = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAXIMUM: Final = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE: Final = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def halves(total: int, lower: bool) -> tuple[int, int]:
    """Split TOTAL padding into before and after; the odd one goes after, or before if LOWER."""
    before = total - total // 2 if lower else total // 2
    return before, total - before


def padding(
    kind: str, given: Ints | None, sizes: Sequence[int], windows: Sequence[int], strides: Ints
) -> list[int]:
    """Return padding before and after each axis for ``valid``, ``custom``, ``same`` or ``same_lower``.

    WINDOWS are the extents that a window covers, dilation included.

    >>> padding("same", None, [5], [4], (2,))
    [1, 2]
    """
    if kind in ("valid", "custom"):
        return list(given or ()) if kind == "custom" and given else [0] * 2 * len(sizes)
    result: list[int] = []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        result += halves(total, kind == "same_lower")
    return result


def pad_spatial(x: Tensor, amounts: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the last axes of X; AMOUNTS are before and after, outermost axis first."""
    pairs = [amounts[i : i + 2] for i in range(0, len(amounts), 2)]
    return F.pad(x, [amount for pair in reversed(pairs) for amount in pair], value=value)


def extents(weight: Tensor, dilations: Sequence[int]) -> list[int]:
    """Return how many positions a dilated kernel covers on each axis."""
    return [(size - 1) * d + 1 for size, d in zip(weight.shape[2:], dilations, strict=True)]


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Tensor:
    """Cross-correlate with a weight of (out, in / groups, ...)."""
    rank = x.dim() - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    amounts = padding(pad_type, pad, x.shape[2:], extents(weight, dilations), strides)
    padded = pad_spatial(x, amounts)
    return CONVOLVE[rank](padded, weight, bias, strides, 0, dilations, groups)


def fit(y: Tensor, axis: int, start: int, size: int) -> Tensor:
    """Take SIZE positions from START on AXIS; zeros stand beyond the end."""
    missing = start + size - y.shape[axis]
    if missing > 0:
        y = F.pad(y, [0, 0] * (y.dim() - 1 - axis) + [0, missing])
    return y.narrow(axis, start, size)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: Ints | None = None,
    output_shape: Ints | None = None,
    pad_type: str = "valid",
    strides: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Tensor:
    """Apply the transpose of a convolution; the weight is (in, out / groups, ...)."""
    rank = x.dim() - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    y = TRANSPOSED[rank](x, weight, None, strides, 0, 0, groups, dilations)
    for i in range(rank):
        full, same = y.shape[2 + i], x.shape[2 + i] * strides[i]
        custom = pad[2 * i : 2 * i + 2] if pad and pad_type == "custom" else (0, 0)
        natural = same if pad_type.startswith("same") else full - sum(custom)
        size = output_shape[2 + i] if output_shape else natural
        surplus = halves(max(full - size, 0), pad_type == "same_lower")
        start = surplus[0] if pad_type.startswith("same") else custom[0]
        y = fit(y, 2 + i, start, size)
    return y if bias is None else y + per_channel(bias, y)


def overhang(x: Tensor, kernel: Ints, strides: Ints, amounts: Sequence[int]) -> list[int]:
    """Return the extra padding after each axis that lets a last, partial window in.

    As in PyTorch, a window must start inside the input or its leading padding.
    """
    result: list[int] = []
    for i, (window, stride) in enumerate(zip(kernel, strides, strict=True)):
        leading = x.shape[2 + i] + amounts[2 * i]
        total = leading + amounts[2 * i + 1]
        steps = -(-(total - window) // stride)
        steps -= steps * stride >= leading
        result += [0, max(steps * stride + window - total, 0)]
    return result


def window_padding(
    x: Tensor, kernel: Ints, strides: Ints, kind: str, given: Ints | None, ceil_mode: bool
) -> tuple[list[int], list[int]]:
    """Return the padding that counts as input, and the overhang that never does."""
    amounts = padding(kind, given, x.shape[2:], kernel, strides)
    over = overhang(x, kernel, strides, amounts) if ceil_mode else [0] * len(amounts)
    return amounts, over


def pool(reduce: Callable[[Tensor, Ints, Ints], Tensor], beyond: float) -> Function:
    """Return the kernel that applies REDUCE to windows; what is padded holds BEYOND."""

    def pooled(
        x: Tensor,
        kernel_sizes: Ints,
        strides: Ints | None = None,
        pad_type: str = "valid",
        pad: Ints | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        strides = strides or (1,) * len(kernel_sizes)
        amounts, over = window_padding(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
        both = [a + b for a, b in zip(amounts, over, strict=True)]
        return reduce(pad_spatial(x, both, beyond), kernel_sizes, strides)

    return pooled


def window_sum(x: Tensor, kernel: Ints, strides: Ints) -> Tensor:
    """Sum each window."""
    rank, volume = len(kernel), math.prod(kernel)
    result: Tensor = AVERAGE[rank](x, kernel, strides) * volume
    return result


def avg_pool(
    x: Tensor,
    kernel_sizes: Ints,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    ceil_mode: bool = False,
    exclude_padding_from_average: bool = False,
) -> Tensor:
    """Average each window over the positions that count."""
    strides = strides or (1,) * len(kernel_sizes)
    amounts, over = window_padding(x, kernel_sizes, strides, pad_type, pad, ceil_mode)
    counted = 0.0 if exclude_padding_from_average else 1.0
    ones = pad_spatial(pad_spatial(torch.ones_like(x), amounts, counted), over)
    padded = pad_spatial(x, [a + b for a, b in zip(amounts, over, strict=True)])
    count = window_sum(ones, kernel_sizes, strides).round()
    return window_sum(padded, kernel_sizes, strides) / count


def window_maximum(x: Tensor, kernel: Ints, strides: Ints) -> Tensor:
    """Take the maximum of each window."""
    result: Tensor = MAXIMUM[len(kernel)](x, kernel, strides)
    return result


def window_norm(x: Tensor, kernel: Ints, strides: Ints) -> Tensor:
    """Return the root of the sum of squares of each window."""
    return window_sum(x.square(), kernel, strides).sqrt()


KERNELS: Final[Mapping[str, Function]] = {
    "avg_pool": avg_pool,
    "conv": conv,
    "conv_transpose": conv_transpose,
    "l2_pool": pool(window_norm, 0.0),
    "max_pool": pool(window_maximum, -math.inf),
}
