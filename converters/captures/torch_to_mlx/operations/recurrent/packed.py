"""Packed sequences, which stay padded: where a sequence has ended, its state passes unchanged."""

from __future__ import annotations

import mlx.core as mx

from ......errors import MismatchError
from ..registry import operation


def going_on(time: int, lengths: mx.array) -> mx.array:
    """Return, shape ``(time, batch)``, which sequences have a step at each time."""
    return mx.arange(time)[:, None] < lengths


@operation("weighbridge.pack.default")
def _pack(input_: mx.array, batch_first: bool, **_: mx.array) -> mx.array:
    return mx.swapaxes(input_, 0, 1) if batch_first else input_


@operation("weighbridge.pad.default")
def _pad(
    data: mx.array, lengths: mx.array, batch_first: bool, value: float, total: int, whole: bool
) -> mx.array:
    """Give nan, where an error cannot be raised, if a sequence would be cut or padded too far."""
    longest = mx.max(lengths)
    fits = longest == len(data) if whole else longest <= min(total, len(data))
    fits = mx.logical_or(fits, longest == 0)  # shapes alone are looked at: torch takes no length 0
    _check(fits, len(data), whole)
    rows = data[:total]
    widths = [(0, total - len(rows)), *[(0, 0)] * (data.ndim - 1)]
    going = going_on(total, lengths).reshape(total, -1, *[1] * (data.ndim - 2))
    padded = mx.where(going, mx.pad(rows, widths), mx.array(value, data.dtype))
    padded = mx.where(fits, padded, mx.array(mx.nan, data.dtype))
    return mx.swapaxes(padded, 0, 1) if batch_first else padded


def _check(fits: mx.array, time: int, whole: bool) -> None:
    """Raise if the lengths are known and do not fit; inside ``mx.compile`` they are not known."""
    try:
        known = fits.item()
    except ValueError:
        return
    if not known:
        reason = (
            f"the input has {time} steps, the longest sequence fewer or more: cut the input, or"
        )
        reason = reason if whole else "a sequence is longer than the input or total_length:"
        raise MismatchError(
            "the lengths do not fit a packed sequence",
            [f"{reason} pass a total_length to pad_packed_sequence"],
        )
