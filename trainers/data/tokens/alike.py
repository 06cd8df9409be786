"""Batches of texts of like padded lengths: rows are divided in two, and each side likewise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ....converters.values import Array

FEW: Final = 8  # batches that are divided in more ways


def alike(rows: Array, widths: Array, size: int) -> Array:
    """Return ROWS so that every SIZE of them have like WIDTHS, which are padded to their largest.

    They are divided in two, in one of the ``ways`` and where the padded lengths of both sides are least,
    and each side likewise, down to batches. Rows of the same widths keep their order.

    Args:
        rows: numbers of rows.
        widths: padded lengths, shape ``(all rows, fields)``.
        size: rows of a batch.

    >>> alike(np.arange(6), np.array([[9, 1], [1, 9], [2, 2], [9, 1], [1, 9], [2, 2]]), 2).tolist()
    [1, 4, 2, 5, 0, 3]
    """
    found = widths[rows]
    if len(rows) <= size or (found == found[0]).all():
        return rows
    cuts = np.arange(size, len(rows), size)
    best = []
    for order in ways(found, few=len(cuts) < FEW):
        below = np.maximum.accumulate(found[order]).sum(1)[cuts - 1]
        above = np.maximum.accumulate(found[order][::-1])[::-1].sum(1)[cuts]
        cost = cuts * below + (len(rows) - cuts) * above
        best.append((int(cost.min()), int(cuts[cost.argmin()]), rows[order]))
    _, cut, ordered = min(best, key=lambda way: way[0])
    return np.concatenate([alike(part, widths, size) for part in np.split(ordered, [cut])])


def ways(widths: Array, *, few: bool) -> Iterator[Array]:
    """Yield orders of rows of WIDTHS, shape ``(rows, fields)``, that cuts may divide.

    By one of the fields; and where there are FEW rows so too behind, or before, those that are wider than
    some width in another field: so one batch takes what is long there, whatever it is here.
    """
    fields = range(widths.shape[1])
    for field in fields:
        order = widths[:, field].argsort(kind="stable")
        yield order
        for other in fields if few else ():
            for most in np.unique(widths[:, other])[:-1] if other != field else ():
                wide = widths[order, other] > most
                yield np.concatenate([order[~wide], order[wide]])
                yield np.concatenate([order[wide], order[~wide]])
