"""Lines in the numbers that are stored: rounded, their neighbours, MLX's own, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ....errors import UnsupportedError
from ...common.dtypes import unit_roundoff
from ...values import Array
from ..rounding import round_once
from .groups import Float64, Groups, Line

LEAST: Final = np.float32(1e-7)  # of a scale: `eps` of `mlx/backend/cpu/quantized.cpp`, `quantize`
NOTICED: Final = 0.1  # steps by which rounding a scale may move the last code


def best(lines: Sequence[Line], groups: Groups) -> Line:
    """Return of LINES, in the values' own numbers, the one of least error for each group.

    Where all of them err infinitely the scale is infinite.
    """
    chosen, least = lines[0], groups.errors(groups.in_steps(lines[0]))
    for line in lines[1:]:
        errors = groups.errors(groups.in_steps(line))
        chosen = line.where(errors < least, chosen)
        least = np.minimum(errors, least)
    return Line(np.where(least < np.inf, chosen.scales, np.inf), chosen.biases)


def check_finite(line: Line, values: Array, dtype: np.dtype[Any]) -> None:
    """Check that DTYPE has numbers for every group of VALUES, in any order.

    Raises:
        UnsupportedError: it has none for some.
    """
    if not np.isfinite(line.scales).all():
        raise UnsupportedError(
            f"weights as large as {np.abs(values).max():.3g} need a scale or bias beyond {dtype.name};"
            " store scales in bfloat16 or float32"
        )


def rounded(numbers: Float64, dtype: np.dtype[Any]) -> Float64:
    """Return NUMBERS as DTYPE has them, infinite where they are too large for it."""
    return round_once(numbers, dtype).astype(np.float64)


def near(scales: Float64, dtype: np.dtype[Any], top: int) -> list[Float64]:
    """Return SCALES rounded to DTYPE; and the numbers beside them, where rounding moves code TOP."""
    stored = rounded(scales, dtype)
    spacing = unit_roundoff(dtype.name)
    if top * spacing < NOTICED:
        return [stored]
    return [stored, *(rounded(stored * (1 + side * 1.5 * spacing), dtype) for side in (-1, 1))]


def mlx_line(groups: Groups, dtype: np.dtype[Any]) -> Line:
    """Return the scale and bias of ``mx.quantize``, which makes one code worth zero, as stored.

    In float32 as there, of the values in DTYPE, which MLX is given.
    """
    low, high = (
        rounded(ends.astype(np.float64), dtype).astype(np.float32)
        for ends in (groups.least, groups.largest)
    )
    below = np.abs(low) > np.abs(high)
    with np.errstate(all="ignore"):  # what is not finite is not chosen
        sizes = np.maximum((high - low) / np.float32(groups.top), LEAST)
        scales, edges = np.where(below, sizes, -sizes), np.where(below, low, high)
        counts = np.rint(edges / scales)
        scales = np.where(counts == 0, scales, edges / counts)
    biases = np.where(counts == 0, np.float32(0), edges)
    return Line(*(rounded(numbers.astype(np.float64), dtype) for numbers in (scales, biases)))
