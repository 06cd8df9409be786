"""A weight encoded with searched scales, block by block, by several threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints.workers import Workers
from ...common.dtypes import dtype_of
from ...values import Array
from ..mlx import check_shape
from ..packing import pack, pack_columns
from ..scheme import Scheme
from ..workspace import Room
from . import affine, floats, zeros
from .groups import Groups
from .stored import check_finite

BLOCK: Final = 1 << 19  # elements worked on at a time: fewer, and threads wait for one another
ZEROS: Final = (None, "integer", "symmetric")
NEGLIGIBLE: Final = (
    1e-4  # of the mean importance: columns that calibration hardly saw are not given up
)


def encode(
    values: Array,
    scheme: Scheme,
    dtype: str | np.dtype[Any],
    *,
    zero: str | None = None,
    importance: Array | None = None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the parts, as MLX stores them, of rows of a weight: scales searched, codes nearest.

    The squared error of each group is at most that of ``mx.quantize``, up to float32 rounding.
    Codes are chosen by the scales as stored.

    Args:
        values: float32, ``(..., rows, columns)``; columns a multiple of the group.
        scheme: bits, group and mode.
        dtype: of the scales and biases of an affine scheme: float16, bfloat16 or float32, as a
            safetensors code, a name or a dtype. Other modes have bytes as scales.
        zero: "integer" if a whole code shall be worth zero, "symmetric" if the middle one shall;
            affine schemes only. Then MLX's rounding, which is bound less, may be better.
        importance: of each column's squared error, float32, ``(columns,)``: with calibration the mean
            square of what reaches it. All alike if ``None``.
        threads: at most; as many as there are cores if ``None``.

    Raises:
        UnsupportedError: the last axis does not divide, a value is not finite, or is too large for
            scales in DTYPE.

    >>> parts = encode(np.linspace(-1, 1, 64, dtype="f4").reshape(1, 64), Scheme(4, 64), "float16")
    >>> {name: (part.dtype.name, part.shape) for name, part in parts.items()}
    {'weight': ('uint32', (1, 8)), 'scales': ('float16', (1, 1)), 'biases': ('float16', (1, 1))}
    """
    check_shape(values.shape, scheme)
    job = _Encoding(finite(values), scheme, dtype_of(dtype), zero, importance)
    Workers(threads or cores()).each(job.blocks(), job.encode)
    return job.parts()


class _Encoding:
    """One weight on its way into parts, block by block."""

    def __init__(
        self,
        values: Array,
        scheme: Scheme,
        dtype: np.dtype[Any],
        zero: str | None,
        importance: Array | None,
    ) -> None:
        check_zero(zero, scheme)
        self.shape, self.scheme, self.dtype, self.zero = values.shape, scheme, dtype, zero
        self.values = values.reshape(-1, scheme.group_size)
        self.importance = None if importance is None else _normed(importance, scheme.group_size)
        count = len(self.values)
        self.words = np.empty((count, scheme.group_size * scheme.bits // 32), "<u4")
        self.scales = np.empty(count, dtype if scheme.affine else np.uint8)
        self.biases = np.empty(count if scheme.affine else 0, dtype)
        self._rooms: list[Room] = []

    def blocks(self) -> Iterator[slice]:
        """Yield slices of the groups, a few at a time."""
        step = BLOCK // self.scheme.group_size
        count = len(self.values)
        return (slice(at, min(at + step, count)) for at in range(0, count, step))

    def encode(self, block: slice) -> None:
        """Encode the groups of BLOCK."""
        room = self._rooms.pop() if self._rooms else Room()
        values, importance = self.values[block], self._important(block)
        if self.scheme.affine:
            groups = Groups(values, self.scheme.bits, room, importance, self.zero)
            self.words[block] = pack(self._affine(block, groups), self.scheme.bits)
        else:
            mode = self.scheme.mode
            codes, self.scales[block] = floats.searched(values, mode, room, importance)
            self.words[block] = pack_columns(codes, self.scheme.bits)
        self._rooms.append(room)

    def parts(self) -> dict[str, Array]:
        """Return what was encoded, by part, in the shapes of the weight."""
        *lead, columns = self.shape
        found = {"weight": self.words.reshape(*lead, columns * self.scheme.bits // 32)}
        groups = (*lead, columns // self.scheme.group_size)
        found["scales"] = self.scales.reshape(groups)
        return {**found, "biases": self.biases.reshape(groups)} if self.scheme.affine else found

    def _affine(self, block: slice, groups: Groups) -> Array:
        """Store the scales and biases of GROUPS, which are those of BLOCK, and return their codes."""
        if self.zero:
            line = zeros.searched(groups, self.dtype, self.zero)
        else:
            line = affine.searched(groups, self.dtype)
        check_finite(line, self.values[block], self.dtype)
        self.scales[block], self.biases[block] = (numbers.astype(self.dtype) for numbers in line)
        return groups.codes(groups.in_steps(line))

    def _important(self, block: slice) -> Array | None:
        """Return the importance of each element of BLOCK, ``(groups, group)``."""
        if self.importance is None:
            return None
        rows: Array = self.importance[np.arange(block.start, block.stop) % len(self.importance)]
        return rows


def _normed(importance: Array, group_size: int) -> Array:
    """Return IMPORTANCE, ``(groups of a row, group)``, about 1, and nowhere so small that a code is free."""
    grouped = importance.reshape(-1, group_size).astype(np.float64)
    mean = grouped.mean()
    return np.maximum(grouped / (mean or 1.0), NEGLIGIBLE).astype(np.float32)


def check_zero(zero: str | None, scheme: Scheme) -> None:
    """Raise ``UnsupportedError`` if SCHEME has no such ZERO."""
    if zero not in ZEROS or (zero and not scheme.affine):
        raise UnsupportedError(f"{scheme} has no {zero} zero; leave that to affine schemes")


def finite(values: Array) -> Array:
    """Return VALUES in float32.

    Raises:
        UnsupportedError: one of them is not finite.
    """
    values = values.astype(np.float32, copy=False)
    if not values.size or (np.isfinite(values.min()) and np.isfinite(values.max())):
        return values
    index = [int(at) for at in np.argwhere(~np.isfinite(values))[0]]
    raise UnsupportedError(f"the weight is {values[*index]} at {index}: no code is worth that")


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
