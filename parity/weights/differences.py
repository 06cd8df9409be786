"""Say where a tensor departs from the reference: which rows, which elements, by how much."""

from __future__ import annotations

import numpy as np

from ...converters.common.dtypes import CODE
from ...converters.values import Array
from .candidate_tensor import CandidateTensor, row_tolerance
from .orders import ranges
from .reference_index import unit
from .sketches.casts import cast


def describe_differences(tensor: CandidateTensor, source: str) -> str:
    """Return one line on how the TENSOR departs from reference SOURCE, of the same shape.

    Elements are named where the reference's array is at hand, rows where its sketch is.
    """
    gap = f"differs from {source} by {tensor.gap(tensor.index.sketches[source]):.2g}"
    parts = [gap, _rows(tensor, source), _elements(tensor, source)]
    return "; ".join(part for part in parts if part)


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
    if tensor.index.arrays is None:
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
