"""Say where a tensor departs from the reference: which rows, which elements, by how much."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...converters.common.dtypes import CODE
from ...converters.values import Array
from .candidate_tensor import CandidateTensor, row_tolerance
from .orders import describe_order, ranges
from .reference_index import unit
from .sketches.casts import cast

MATRIX: Final = 2
BITS: Final = (4, 8)
GROUPS: Final = (128, 64, 32)
MOST_TOLERANT: Final = (
    0.25  # of a step: numbers of any kind are that near to whole ones half of the time
)


def describe_differences(tensor: CandidateTensor, source: str) -> str:
    """Return one line on how the TENSOR departs from reference SOURCE, of the same shape.

    Elements are named where the reference's array is at hand, rows where its sketch is.
    """
    gap = f"differs from {source} by {tensor.gap(tensor.index.sketches[source]):.2g}"
    parts = [gap, _likeness(tensor, source), _rows(tensor, source), _elements(tensor, source)]
    return "; ".join(part for part in parts if part)


def _likeness(tensor: CandidateTensor, source: str) -> str:
    if tensor.index.arrays is None or tensor.array.size == 0:
        return ""
    wanted = tensor.index.arrays(source).reshape(tensor.array.shape)
    u = max(unit(tensor.array, tensor.index.sketches[source]), 2.0**-53)
    return (
        scaled(tensor.array, wanted, u)
        or columns(tensor.array, wanted)
        or in_bits(tensor.array, wanted, u)
    )


def scaled(found: Array, wanted: Array, u: float) -> str:
    """Return by which factor FOUND is WANTED, in words; empty where it is not, at roundoff U.

    >>> base = np.linspace(1, 2, 9)
    >>> scaled((base * 1.01).astype(np.float16), base, 2.0**-11), scaled(base[::-1], base, 2.0**-11)
    ('as if scaled by 1.01', '')
    """
    own, base = (it.astype(np.float64).reshape(-1) for it in (found, wanted))
    factor = float(own @ base) / max(float(base @ base), 1e-300)
    left, gap = np.linalg.norm(own - factor * base), np.linalg.norm(own - base)
    near = left <= min(2 * u * np.linalg.norm(own), gap / 2)
    return f"as if scaled by {factor:.4g}" if near else ""


def columns(found: Array, wanted: Array) -> str:
    """Return in which order FOUND has the columns of WANTED, in words; empty where it has not.

    >>> columns(np.array([[2, 0, 1]]), np.array([[0, 1, 2]]))
    '3 of 3 columns moved: 0 <- 2, 1 <- 0, 2 <- 1'
    """
    if found.ndim != MATRIX or found.dtype != wanted.dtype:
        return ""
    own, base = ([it.tobytes() for it in array.T] for array in (found, wanted))
    places = {it: number for number, it in enumerate(base)}
    order = [places[it] for it in own if it in places]
    return describe_order(order, "columns") if sorted(order) == [*range(len(base))] else ""


def in_bits(found: Array, wanted: Array, u: float) -> str:
    """Return in how many bits FOUND may have been kept, and WANTED not; empty for none that shows at U.

    Each group of a row is then in steps of its largest number.

    >>> base = np.random.default_rng(0).normal(size=(4, 64))
    >>> step = abs(base).max(1, keepdims=True) / 127
    >>> in_bits((base / step).round() * step, base, 2.0**-24)
    'as a copy in 8 bits is'
    """
    width = found.shape[-1] if found.ndim > 1 else 0
    for group in (it for it in (width, *GROUPS) if width > 1 and width % it == 0):
        for bits in BITS:
            own, base = (_in_steps(it, group, bits, u) for it in (found, wanted))
            if own and not base:
                return f"as a copy in {bits} bits is"
    return ""


def _in_steps(array: Array, group: int, bits: int, u: float) -> bool:
    """Say whether groups of ARRAY's numbers are whole multiples of their largest one's share."""
    levels = 2 ** (bits - 1) - 1
    tolerance = 2 * levels * u + 1e-4
    if tolerance > MOST_TOLERANT:
        return False
    table = array.astype(np.float64).reshape(-1, group)
    shares = table / np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-300) * levels
    return bool((np.abs(shares - shares.round()) <= tolerance).all())


def _rows(tensor: CandidateTensor, source: str) -> str:
    own, other = tensor.sketch, tensor.index.sketches[source]
    if len(own.rows) != len(other.rows) or len(own.rows) < 2:
        return ""
    limit = row_tolerance(own, unit(tensor.array, other))
    wrong = np.flatnonzero(np.abs(own.rows - other.rows) > limit)
    if len(wrong) in {0, len(own.rows)}:
        return ""
    table = tensor.array.reshape(len(own.rows), -1)[wrong]
    what = "are zeros" if not np.any(table) else "differ"
    return f"rows {ranges(wrong)} ({len(wrong)} of {len(own.rows)}) {what}, the others agree"


def _elements(tensor: CandidateTensor, source: str) -> str:
    if tensor.index.arrays is None or not tensor.index.exact:
        return ""
    wanted = cast(tensor.index.arrays(source), CODE[tensor.array.dtype]).reshape(tensor.array.shape)
    wrong = np.flatnonzero((tensor.array != wanted).reshape(-1))
    if len(wrong) == 0 or len(wrong) > tensor.array.size // 2:
        return ""
    count = f"{len(wrong)} of {tensor.array.size} elements"
    return f"{count}, first {_element(tensor.array, wanted, int(wrong[0]))}"


def _element(found: Array, wanted: Array, flat: int) -> str:
    place = [int(it) for it in np.unravel_index(flat, found.shape)]
    own, other = found.reshape(-1)[flat].item(), wanted.reshape(-1)[flat].item()
    flipped = " (sign flipped)" if own == -other else ""
    return f"{place}: {own:.6g}, expected {other:.6g}{flipped}"
