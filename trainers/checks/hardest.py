"""The batches on which a run is most likely to fail: the longest examples, and the largest values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ...converters.values import Array
from ..data.batches import Batch, Dataset, fill

LOOKED_AT: Final = 4096  # examples whose values are read, spread over all
AT_ONCE: Final = 64
Divided = Callable[[list[int]], list[list[int]]]


def hardest_batches(
    dataset: Dataset, size: int, divided: Divided = lambda rows: [rows]
) -> Iterator[tuple[str, Batch]]:
    """Yield what is hard about a batch, and the batch: at most SIZE examples of DATASET, DIVIDED as in training.

    The longest examples come first, where they differ in length; then those with the largest numbers,
    where inputs are fractions. A value that is not finite is the largest of all.
    """

    def made(rows: list[int], key: Callable[[int], float]) -> Batch:
        most = _most(dataset, size, rows, key)
        return dataset.batch(next(part for part in divided(most) if most[0] in part))

    rows = range(len(dataset))
    lengths = [dataset.length(row) for row in rows]
    if len(set(lengths)) > 1:
        yield "longest examples", made(list(rows), lengths.__getitem__)
    values = _values(dataset)
    if len(set(values.values())) > 1:
        yield "largest values", made(list(values), values.__getitem__)


def _values(dataset: Dataset) -> dict[int, float]:
    """Return the largest absolute value of every row looked at; none where there are no fractions."""
    rows = sorted({*np.linspace(0, len(dataset) - 1, LOOKED_AT).astype(int).tolist()})
    values: dict[int, float] = {}
    for at in range(0, len(rows), AT_ONCE):
        found = _largest(dataset, rows[at : at + AT_ONCE])
        if not found:
            break
        values |= found
    return values


def _most(dataset: Dataset, size: int, rows: list[int], key: Callable[[int], float]) -> list[int]:
    """Return the SIZE of ROWS that have the most of KEY, no two with a key in common."""
    ordered = sorted(rows, key=lambda row: (-key(row), row))
    whole = fill(ordered, min(size, len(ordered)), dataset.keys)
    return whole[0] if whole else ordered[:1]


def _largest(dataset: Dataset, rows: list[int]) -> dict[int, float]:
    """Return the largest absolute value of each of ROWS, infinite where one is not finite."""
    arrays = dataset.batch(rows).inputs.values()
    found = [
        _magnitudes(array)
        for array in arrays
        if np.issubdtype(array.dtype, np.floating) and array.ndim and len(array) == len(rows)
    ]
    largest = np.max(found, axis=0).tolist() if found else []
    return dict(zip(rows, largest, strict=False))


def _magnitudes(array: Array) -> Array:
    flat = np.abs(array.reshape(len(array), -1)).max(axis=1, initial=0)
    return np.asarray(np.where(np.isfinite(flat), flat, np.inf), np.float64)
