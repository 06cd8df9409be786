"""Say where a tensor departs from the reference: which rows, which elements, by how much."""

from __future__ import annotations

import numpy as np

from ...converters.common.dtypes import CODE
from ...converters.values import Array
from .book import unit
from .case import Case, row_tolerance
from .casts import cast
from .orders import ranges


def describe_differences(case: Case, source: str) -> str:
    """Return one line on how the tensor of CASE departs from reference SOURCE, of the same shape.

    Elements are named where the reference's array is at hand, rows where its sketch is.
    """
    gap = f"differs from {source} by {case.gap(case.book.sketches[source]):.2g}"
    parts = [gap, _rows(case, source), _elements(case, source)]
    return "; ".join(part for part in parts if part)


def _rows(case: Case, source: str) -> str:
    own, other = case.sketch, case.book.sketches[source]
    if len(own.rows) != len(other.rows) or len(own.rows) < 2:
        return ""
    limit = row_tolerance(own, unit(case.array, other))
    wrong = np.flatnonzero(np.abs(own.rows - other.rows) > limit)
    if len(wrong) in {0, len(own.rows)}:
        return ""
    table = case.array.reshape(len(own.rows), -1)[wrong]
    what = "are zeros" if not np.any(table) else "differ"
    return f"rows {ranges(wrong)} ({len(wrong)} of {len(own.rows)}) {what}, the others agree"


def _elements(case: Case, source: str) -> str:
    if case.book.arrays is None:
        return ""
    wanted = cast(case.book.arrays(source), CODE[case.array.dtype]).reshape(case.array.shape)
    wrong = np.flatnonzero((case.array != wanted).reshape(-1))
    if len(wrong) == 0 or len(wrong) > case.array.size // 2:
        return ""
    count = f"{len(wrong)} of {case.array.size} elements"
    return f"{count}, first {_element(case.array, wanted, int(wrong[0]))}"


def _element(found: Array, wanted: Array, flat: int) -> str:
    place = [int(it) for it in np.unravel_index(flat, found.shape)]
    own, other = found.reshape(-1)[flat].item(), wanted.reshape(-1)[flat].item()
    flipped = " (sign flipped)" if own == -other else ""
    return f"{place}: {own:.6g}, expected {other:.6g}{flipped}"
