"""Merge an update into its base, a block of rows at a time, and measure how much of it survives."""

from __future__ import annotations

from math import prod
from typing import Final, Literal

import numpy as np

from ....errors import MismatchError, UnsupportedError
from ...checkpoints import Header
from ...common.dtypes import CODE, FLOATS, NUMPY
from ...quantization.rounding import round_once
from ...quantization.workspace import Room
from ...values import Array, LowRank
from .survival import Sums, Survival, worst_of

Accumulate = Literal["float32", "float64"]

BLOCK: Final = 1 << 19  # elements merged at a time, each in a handful of float64 temporaries
# Multiplications in one product, few enough for OpenBLAS to use one thread. With its threads, which
# seem to wait for one another at every block, merging took many times as long on a busy machine.
ALONE: Final = 1 << 18


def merge(
    base: Array, update: LowRank, *, accumulate: Accumulate = "float64"
) -> tuple[Array, Survival]:
    """Return BASE with UPDATE in it, and how much of the update survived.

    The sum is formed in float64 and rounded once to the dtype of BASE: ``W + scale * b @ a``, or
    with DoRA magnitudes m ``m / ||W + scale * b @ a|| * (W + ...)``, the norm taken by row (Liu et
    al. 2024, equation 5). Where an update changes a number by nothing, its bits stay.

    Args:
        base: the weight, ``(..., out, in)``.
        update: of that shape.
        accumulate: float32 forms the sum as PEFT does, in half of the time but for float16.

    Raises:
        MismatchError: the shapes differ.
        UnsupportedError: BASE is not floating point, or the sum does not fit its dtype.

    >>> update = LowRank(np.ones((1, 2)), np.ones((2, 1)), scale=2.0)
    >>> merged, survival = merge(np.ones((2, 2), np.float32), update)
    >>> merged.tolist(), survival.gain, survival.cosine, survival.changed
    ([[3.0, 3.0], [3.0, 3.0]], 1.0, 1.0, 4)
    """
    header = Header(CODE.get(base.dtype, str(base.dtype)), base.shape)
    merger, room = Merger(header, update, accumulate), Room()
    merged = np.empty(base.shape, base.dtype)
    sources, targets = (array.reshape(-1, base.shape[-1]) for array in (base, merged))
    for number in range(merger.count):
        rows = merger.rows(number)
        targets[rows] = merger.merge(number, sources[rows], room)
    return merged, merger.survival()


class Merger:
    """An update on its way into a weight.

    The rows of a weight are those of all its matrices, one after the other; a block of rows lies in
    one matrix. The blocks, and so the bits of the result, follow from the shape alone.

    Attributes:
        count: how many blocks there are.
        sums: of the blocks that are done; one that is done twice counts once.

    Raises:
        MismatchError: the shapes differ.
        UnsupportedError: the weight is not floating point.
    """

    def __init__(self, header: Header, update: LowRank, accumulate: Accumulate = "float64") -> None:
        _check(header, update)
        *lead, self._out, self._in = header.shape
        self._update = update
        self._dtype = NUMPY[header.dtype]
        self._wide = np.result_type(accumulate, np.float32 if self._dtype.itemsize < 8 else "f8")
        self._height = max(1, BLOCK // max(1, self._in))
        self._each = -(-self._out // self._height)  # blocks of one matrix
        self.count = prod(lead) * self._each if header.nbytes else 0
        self.sums: dict[int, Sums] = {}

    def rows(self, number: int) -> slice:
        """Return the rows of block NUMBER."""
        matrix, block = divmod(number, self._each)
        start = matrix * self._out + block * self._height
        return slice(start, min(start + self._height, (matrix + 1) * self._out))

    def number(self, row: int) -> int:
        """Return the number of the block that ROW lies in."""
        matrix, rest = divmod(row, self._out)
        return matrix * self._each + rest // self._height

    def merge(self, number: int, base: Array, room: Room) -> Array:
        """Return block NUMBER, whose rows are BASE, with the update in it; it lies in ROOM.

        Raises:
            UnsupportedError: a sum does not fit the dtype.
        """
        before = room.copy("before", base, self._wide)
        delta = self._delta(number, room)
        after = np.add(before, delta, out=room("after", base.shape, self._wide))
        if self._update.magnitude is not None:
            self._turn(number, after)
            np.subtract(after, before, out=delta)
        merged = round_once(after, self._dtype, room)
        still = np.equal(delta, 0, out=room("flags", base.shape, np.bool_))
        np.copyto(merged, base, where=still)  # a sum would lose the sign of zero
        self._note(number, before, delta, merged, room)
        return merged

    def survival(self) -> Survival:
        """Return how much of the update is in the blocks that are done.

        Of many matrices it is that of the worst: one expert whose update is lost would not show in
        figures of all, in which the largest update counts most. ``changed`` and ``size`` are of all.
        """
        matrices: dict[int, Sums] = {}
        for number in sorted(self.sums):
            matrices.setdefault(number // self._each, Sums()).join(self.sums[number])
        found = [sums.survival() for sums in matrices.values()] or [Sums().survival()]
        changed, size = (sum(column) for column in zip(*(it[-2:] for it in found), strict=True))
        return worst_of(found)._replace(changed=changed, size=size)

    def _note(self, number: int, before: Array, intended: Array, merged: Array, room: Room) -> None:
        """Measure block NUMBER; what was infinite or NaN before stays out."""
        realised = room.copy("after", merged, self._wide)
        with np.errstate(invalid="ignore"):
            realised -= before
        finite = np.isfinite(realised, out=room("flags", realised.shape, np.bool_))
        if not finite.all():
            if np.isfinite(before[~finite]).any():
                raise UnsupportedError(
                    f"merged values do not fit {self._dtype}; merge into a wider dtype"
                )
            intended[~finite] = realised[~finite] = 0
        sums = Sums()
        sums.add(intended, realised)
        sums.see(merged)
        self.sums[number] = sums

    def _rows_within(self, number: int) -> slice:
        """Return the rows of block NUMBER, counted in its matrix."""
        rows, first = self.rows(number), number // self._each * self._out
        return slice(rows.start - first, rows.stop - first)

    def _delta(self, number: int, room: Room) -> Array:
        """Return what the update adds to block NUMBER."""
        matrix, rows = number // self._each, self._rows_within(number)
        a, b = (
            factor.reshape(-1, *factor.shape[-2:]) for factor in (self._update.a, self._update.b)
        )
        down = room.copy("a", a[matrix], self._wide)
        up = b[matrix, rows].astype(self._wide)
        delta = room("delta", (len(up), self._in), self._wide)
        width = max(1, ALONE // max(1, up.size))
        for start in range(0, self._in, width):
            columns = slice(start, start + width)
            np.matmul(up, down[:, columns], out=delta[:, columns])
        delta *= self._update.scale
        return delta

    def _turn(self, number: int, total: Array) -> None:
        """Give the rows TOTAL the magnitudes of DoRA."""
        assert self._update.magnitude is not None  # noqa: S101
        magnitude = self._update.magnitude[self._rows_within(number)].astype(self._wide)
        with np.errstate(divide="ignore", invalid="ignore"):
            total *= (magnitude / np.linalg.norm(total, axis=1))[:, None]


def _check(header: Header, update: LowRank) -> None:
    if header.dtype not in FLOATS:
        name = NUMPY.get(header.dtype, header.dtype)
        raise UnsupportedError(f"cannot merge into {name}; merge into the original weights")
    if header.shape != update.shape:
        problem = f"the base has shape {list(header.shape)}, the update {list(update.shape)}"
        raise MismatchError("update and base do not fit", [problem])
