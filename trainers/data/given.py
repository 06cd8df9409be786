"""Data of a user's class, completed by what the loop asks of every dataset."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
import xxhash

from ...errors import UsersCodeError
from .batches import Batch

HASHED: Final = 64  # examples that tell data from other data


class Given:
    """What a user's class holds; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        rows: has ``__len__`` and ``batch(rows)``, which returns arrays by name whose first axis is
            the examples, or a :class:`Batch`. ``length(row)`` and ``keys(row)`` are optional.
        name: what to call it in errors.

    Raises:
        UsersCodeError: it is something else.
    """

    def __init__(self, rows: Any, name: str) -> None:
        for method in ("__len__", "batch"):
            if not callable(getattr(rows, method, None)):
                raise UsersCodeError(f"{name} has no method {method}; data needs __len__ and batch")
        self._rows, self._name = rows, name
        self.report = dict(getattr(rows, "report", {"examples": len(rows)}))
        self.digest = str(getattr(rows, "digest", "") or self._hash())

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._rows)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the examples ROWS as arrays."""
        found = self._rows.batch(list(rows))
        if isinstance(found, Batch):
            return found
        if not isinstance(found, dict) or not all(hasattr(it, "dtype") for it in found.values()):
            raise UsersCodeError(f"{self._name}.batch returned no dictionary of arrays")
        inputs = {name: np.asarray(array) for name, array in found.items()}
        return Batch(inputs, len(rows), sum(array.size for array in inputs.values()))

    def length(self, row: int) -> int:
        """Return how long an example is, 0 where the class does not say it."""
        own = getattr(self._rows, "length", None)
        return int(own(row)) if own else 0

    def keys(self, row: int) -> tuple[Hashable, ...]:
        """Return what no other example of a batch may share with this one: nothing, or what it says."""
        own = getattr(self._rows, "keys", None)
        return tuple(own(row)) if own else ()

    def _hash(self) -> str:
        """Return a hash of examples spread over all."""
        digest = xxhash.xxh3_128(str(len(self)).encode())
        for row in np.unique(np.linspace(0, len(self) - 1, HASHED).astype(int)).tolist():
            for name, array in sorted(self.batch([row]).inputs.items()):
                digest.update(f"{name}{array.dtype}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
