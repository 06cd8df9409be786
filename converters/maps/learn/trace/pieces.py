"""Pieces: where the elements of a result lie in the tensors that it is made of.

A piece is a box of elements that keep a fixed relation: element ``(i, j, ...)`` of the box lies at
``start + i * here_i + j * here_j ...`` of its source and at ``at + i * there_i + j * there_j ...`` of
the result, both counted row by row. To reshape a result changes no piece; every other movement
splits factors at the axes of the shape and moves them. What does not fit raises :class:`Unfit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Final, NamedTuple

from ...notation.rules import Change

MOST_PIECES: Final = 4096
SPLIT: Final = "its parts divide one axis at places that no one layout has"


class Unfit(Exception):  # noqa: N818  (not an error: the caller falls back to a program)
    """What happens to a tensor is no rearrangement of whole boxes."""


class Factor(NamedTuple):
    """SIZE elements, HERE apart in the source and THERE apart in the result."""

    size: int
    here: int
    there: int


class Piece(NamedTuple):
    """A box of elements of a source in a result.

    Attributes:
        source: name of the tensor.
        start: the first element in the source.
        at: the first element in the result.
        factors: the sides of the box.
        changes: of value, in order.
    """

    source: str
    start: int
    at: int
    factors: tuple[Factor, ...]
    changes: tuple[Change, ...] = ()

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(factor.size for factor in self.factors)

    def flip(self) -> Piece:
        """Return the piece with source and result swapped."""
        factors = tuple(Factor(size, there, here) for size, here, there in self.factors)
        return self._replace(start=self.at, at=self.start, factors=factors)


class Side(NamedTuple):
    """A side of a box along one AXIS of the result, THERE apart on that axis."""

    size: int
    here: int
    axis: int
    there: int


class Box(NamedTuple):
    """A piece whose sides lie along the axes of the result.

    Attributes:
        source: name of the tensor.
        start: the first element in the source.
        at: the first index on every axis of the result.
        sides: in any order.
        changes: of value, in order.
    """

    source: str
    start: int
    at: tuple[int, ...]
    sides: tuple[Side, ...]
    changes: tuple[Change, ...]

    def along(self, axis: int) -> list[Side]:
        """Return the sides along AXIS, the slowest first."""
        found = [side for side in self.sides if side.axis == axis]
        return sorted(found, key=lambda side: (-side.there, -side.size))

    def moved(self, axis: int, by: int) -> Box:
        """Return the box BY elements further along AXIS."""
        at = (*self.at[:axis], self.at[axis] + by, *self.at[axis + 1 :])
        return self._replace(at=at)

    def without(self, side: Side, index: int) -> Box:
        """Return the part of the box that has INDEX on SIDE."""
        sides = list(self.sides)
        sides.remove(side)
        box = self._replace(start=self.start + index * side.here, sides=tuple(sides))
        return box.moved(side.axis, index * side.there)

    def cut(self, side: Side, first: int, count: int) -> Box:
        """Return the part of the box that has COUNT indices from FIRST on along SIDE."""
        sides = list(self.sides)
        sides[sides.index(side)] = side._replace(size=count)
        box = self._replace(start=self.start + first * side.here, sides=tuple(sides))
        return box.moved(side.axis, first * side.there)


def strides(shape: Sequence[int]) -> list[int]:
    """Return how many elements apart the indices of each axis are.

    >>> strides((2, 3, 4))
    [12, 4, 1]
    """
    found = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * size)
    return found[::-1][: len(shape)]


def split_factor(factor: Factor, bound: int) -> tuple[Factor, Factor]:
    """Split FACTOR in two, the outer one with a stride of BOUND in the result.

    Raises:
        Unfit: there is no such split.
    """
    size, here, there = factor
    if bound % there or (size * there) % bound:
        raise Unfit(SPLIT)
    inner = bound // there
    return Factor(size // inner, here * inner, bound), Factor(inner, here, there)


def split_all(factors: Sequence[Factor], bounds: Sequence[int]) -> list[Factor]:
    """Split FACTORS at all BOUNDS, strides in the result in falling order."""
    result = []
    for factor in factors:
        rest = factor
        for bound in bounds:
            if rest.there < bound < rest.size * rest.there:
                outer, rest = split_factor(rest, bound)
                result.append(outer)
        result.append(rest)
    return result


def spread(piece: Piece, shape: Sequence[int]) -> Box:
    """Return PIECE with its sides along the axes of SHAPE.

    Raises:
        Unfit: it is no box there.
    """
    steps = strides(shape)
    wide = [axis for axis, size in enumerate(shape) if size > 1]
    sides, last = [], [0] * len(shape)
    for size, here, there in split_all(piece.factors, [steps[axis] for axis in wide]):
        axis = next((axis for axis in wide if steps[axis] <= there), None)
        if axis is None or there % steps[axis]:
            raise Unfit(SPLIT)
        sides.append(Side(size, here, axis, there // steps[axis]))
        last[axis] += (size - 1) * sides[-1].there
    at = tuple(piece.at // step % max(size, 1) for step, size in zip(steps, shape, strict=True))
    if any(first + more >= size for first, more, size in zip(at, last, shape, strict=True)):
        raise Unfit(SPLIT)
    return Box(piece.source, piece.start, at, tuple(sides), piece.changes)


def flatten(box: Box, shape: Sequence[int]) -> Piece:
    """Return the piece that BOX is in a result of SHAPE: the inverse of ``spread``."""
    steps = strides(shape)
    at = sum(first * step for first, step in zip(box.at, steps, strict=True))
    factors = tuple(
        Factor(s.size, s.here, s.there * steps[s.axis]) for s in box.sides if s.size > 1
    )
    return Piece(box.source, box.start, at, factors, box.changes)


def narrowed(box: Box, axis: int, start: int, stop: int) -> Iterator[Box]:
    """Yield the parts of BOX between START and STOP of AXIS, counted from START."""
    sides = box.along(axis)
    if not sides and not start <= box.at[axis] < stop:
        return
    for part in _within(box, sides, start, stop) if sides else (box,):
        yield part.moved(axis, -start)


def _within(box: Box, sides: list[Side], start: int, stop: int) -> Iterator[Box]:
    """Yield what of BOX lies from START to STOP along the axis of SIDES, those not yet cut."""
    head, *rest = sides
    origin = box.at[head.axis]
    inner = sum((side.size - 1) * side.there for side in rest)
    first = max(0, -((origin - start) // head.there))
    last = min(head.size - 1, (stop - 1 - inner - origin) // head.there)
    if first <= last:
        yield box.cut(head, first, last - first + 1)
    for index in range(head.size) if inner else ():
        low = origin + index * head.there
        if not first <= index <= last and low < stop and low + inner >= start:
            yield from _within(box.without(head, index), rest, start, stop)


def stepped(box: Box, axis: int, step: int) -> Box | None:
    """Return the part of BOX at every STEP-th index of AXIS, ``None`` where there is none.

    Raises:
        Unfit: the part is no box.
    """
    loose = [side for side in box.along(axis) if side.there % step]
    if len(loose) > 1:
        raise Unfit("a slice with a step runs across two axes that became one")
    if loose:
        [side] = loose
        apart = step // gcd(side.there, step)
        hits = (i for i in range(side.size) if (box.at[axis] + i * side.there) % step == 0)
        first = next(hits, None)
        if first is None:
            return None
        count = -(-(side.size - first) // apart)
        sides = list(box.sides)
        sides[sides.index(side)] = Side(count, side.here * apart, axis, side.there * apart)
        box = box._replace(start=box.start + first * side.here, sides=tuple(sides))
        box = box.moved(axis, first * side.there)
    if box.at[axis] % step:
        return None
    sides = [s._replace(there=s.there // step) if s.axis == axis else s for s in box.sides]
    at = (*box.at[:axis], box.at[axis] // step, *box.at[axis + 1 :])
    return box._replace(at=at, sides=tuple(sides))
