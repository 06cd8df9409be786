"""Data of a user's class, completed by what the loop asks of every dataset."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import xxhash

from ...converters.models.factories import kind_of
from ...converters.values import Array
from ...errors import UsersCodeError
from .batches import Batch, narrowed

HASHED: Final = 64  # examples that tell data from other data
# What data of ours may say of itself; the same names of a user's class mean something else.
OURS: Final = frozenset({"marks", "width", "by_width"})


Orders = Sequence[Sequence[str]]


class Given:
    """What a user's class holds; see :class:`~weighbridge.trainers.data.batches.Dataset`.

    Args:
        rows: has ``__len__`` and ``batch(rows)``, which returns arrays by name whose first axis is
            the examples, or a :class:`Batch`; or ``__getitem__(row)``, which returns those of one
            example, or a tuple of them. ``length(row)`` and ``keys(row)`` are optional.
        name: what to call it in errors.
        orders: names for the arrays of a tuple, by how many they are.

    Raises:
        UsersCodeError: it is something else.
    """

    def __init__(self, rows: Any, name: str, orders: Orders = ()) -> None:
        lacking = [method for method in ("__len__", "batch") if not _has(rows, method)]
        if hasattr(rows, "dataset") and hasattr(rows, "batch_sampler"):
            raise UsersCodeError(
                f"{name} is {kind_of(rows)}; give its dataset, batches are made here"
            )
        if lacking and not (lacking == ["batch"] and _has(rows, "__getitem__")):
            raise UsersCodeError(
                f"{name} has no method {lacking[0]}; data needs __len__ and batch, or __len__ and __getitem__"
            )
        self._rows, self._name = rows, name
        self._batch = _stacked(rows, name, orders) if lacking else rows.batch
        self.report = dict(getattr(rows, "report", {"examples": len(rows)}))
        self.digest = str(getattr(rows, "digest", "") or self._hash())

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._rows)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the examples ROWS as arrays."""
        found = self._batch(list(rows))
        if isinstance(found, Batch):
            return found
        if not isinstance(found, dict) or not all(hasattr(it, "dtype") for it in found.values()):
            raise UsersCodeError(f"{self._name}.batch returned no dictionary of arrays")
        inputs = {name: narrowed(np.asarray(array)) for name, array in found.items()}
        return Batch(inputs, len(rows), sum(array.size for array in inputs.values()))

    def __getattr__(self, name: str) -> Any:
        """Return what the user's class holds by another NAME, for a metric of theirs."""
        if name in OURS or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._rows, name)

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


def _has(rows: Any, method: str) -> bool:
    return callable(getattr(rows, method, None))


def _stacked(rows: Any, name: str, orders: Orders) -> Any:
    """Return what makes a batch of ROWS that are had one by one, as a DataLoader of PyTorch does.

    Raises:
        UsersCodeError: an example is neither a dictionary nor a tuple that ORDERS have names for, or examples
            have arrays of several shapes.
    """

    def batch(chosen: Sequence[int]) -> dict[str, Array]:
        examples = [_by_name(rows[row], f"{name}[{row}]", orders) for row in chosen]
        columns = {key: [np.asarray(it[key]) for it in examples] for key in examples[0]}
        for key, column in columns.items():
            if len(shapes := {it.shape for it in column}) > 1:
                several = " and ".join(map(str, sorted(shapes)[:2]))
                raise UsersCodeError(
                    f"{name}: {key} has shapes {several} in one batch; pad them in a method batch(rows)"
                )
        return {key: np.stack(column) for key, column in columns.items()}

    return batch


def _by_name(example: Any, name: str, orders: Orders) -> Mapping[str, Any]:
    """Return the arrays of EXAMPLE by the names of the objective's inputs."""
    if isinstance(example, Mapping):
        return example
    if hasattr(example, "_asdict"):
        return dict(example._asdict())
    for order in orders if isinstance(example, tuple | list) else ():
        if len(order) == len(example):
            return dict(zip(order, example, strict=True))
    known = " or ".join(f"({', '.join(order)})" for order in orders)
    raise UsersCodeError(
        f"{name} is {kind_of(example)}; an example is a dictionary of arrays by the names of the"
        " objective's inputs" + (f", or a tuple of them: {known}" if known else "")
    )
