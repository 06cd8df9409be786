"""Labels of examples: found in the training split, and told as numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....converters.values import Array
from ..rows.tables import Refused, Row

Label = int | str
Labels = tuple[Label, ...] | Label


def label_of(row: Row, column: str) -> Labels | Refused:
    """Return the label in COLUMN of ROW, or its labels where it is a list."""
    if row.get(column) is None:
        return Refused(f"no {column}")
    value = row[column]
    if not isinstance(value, list | tuple | np.ndarray):
        return _one(value, column)
    found = [_one(it, column) for it in value]
    wrong = next((it for it in found if isinstance(it, Refused)), None)
    return wrong or tuple(found)


def _one(value: Any, column: str) -> Label | Refused:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | np.number) and math.isfinite(value) and value == int(value):
        return int(value)
    return Refused(f"{column} {value!r} is neither a name nor a whole number")


def odd(placed: Sequence[tuple[str, Labels]]) -> list[str]:
    """Return a line for every label of PLACED that is a number among names, or a name among numbers: the fewer ones."""
    each = [
        (place, it)
        for place, them in placed
        for it in (them if isinstance(them, tuple) else (them,))
    ]
    sides = [[it for it in each if isinstance(it[1], kind)] for kind in (str, int)]
    return [f"{place}: {label!r}" for place, label in min(sides, key=len)]


class Classes(NamedTuple):
    """What labels there are.

    Attributes:
        names: of the classes in their order; numbers where they have no names.
        several: whether an example may have several, so that its label is a 0 or 1 for each class.
        vectors: whether the file has them so too.
    """

    names: tuple[Label, ...]
    several: bool = False
    vectors: bool = False

    @staticmethod
    def found(labels: Sequence[Labels], names: Sequence[str] | None) -> Classes:
        """Return the classes of LABELS, in the order of NAMES if they are given, or as many as these.

        Lists of numbers are vectors if all are of one length and hold nothing but 0 and 1.

        >>> Classes.found(["b", "a"], None).names, Classes.found([(2,), (0, 1)], None).names
        (('a', 'b'), (0, 1, 2))
        """
        several = [label for label in labels if isinstance(label, tuple)]
        each = {it for label in labels for it in (label if isinstance(label, tuple) else (label,))}
        sizes = {len(label) for label in several}
        vectors = len(several) == len(labels) and len(sizes) == 1 and each <= {0, 1}
        named = sorted(it for it in each if isinstance(it, str))
        if names:
            known: tuple[Label, ...] = tuple(names) if named else tuple(range(len(names)))
            return Classes(known, bool(several), vectors)
        numbers = max((it for it in each if isinstance(it, int)), default=-1) + 1
        count = sizes.pop() if vectors else numbers
        return Classes(tuple(named) or tuple(range(count)), bool(several), vectors)

    def wrong(self, label: Labels) -> str | None:
        """Return what is wrong with LABEL, ``None`` if nothing is."""
        if isinstance(label, tuple) and not self.several:
            return "several labels, and training has one for each example"
        if self.vectors:
            right = (
                isinstance(label, tuple) and len(label) == len(self.names) and {*label} <= {0, 1}
            )
            return None if right else f"label {label} is not {len(self.names)} times 0 or 1"
        each = label if isinstance(label, tuple) else (label,)
        unknown = next((it for it in each if self._number(it) is None), None)
        return None if unknown is None else f"label {unknown!r} is none of {self._shown()}"

    def encoded(self, labels: Iterable[Labels]) -> Array:
        """Return LABELS as numbers, int64 of shape (examples,), or float32 (examples, classes)."""
        if not self.several:
            return np.array(
                [self._number(it) for it in labels if not isinstance(it, tuple)], np.int64
            )
        return np.array([self._vector(it) for it in labels], np.float32)

    def _vector(self, label: Labels) -> list[float]:
        each = label if isinstance(label, tuple) else (label,)
        if self.vectors:
            return [float(it) for it in each]
        numbers = {self._number(it) for it in each}
        return [float(number in numbers) for number in range(len(self.names))]

    def _number(self, label: Label) -> int | None:
        return self.names.index(label) if label in self.names else None

    def _shown(self) -> str:
        """Return the classes in a few words."""
        if self.names and isinstance(self.names[0], int):
            return f"0 to {len(self.names) - 1}"
        more = f" and {len(self.names) - 8} more" if len(self.names) > 8 else ""
        return ", ".join(str(name) for name in self.names[:8]) + more
