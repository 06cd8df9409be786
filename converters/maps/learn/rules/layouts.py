"""The axes that explain pieces: the layout of the tensors of a rule, in the notation of maps.

Every axis of every tensor is looked at alone. Where all pieces run through the outer part of it, it
is a product; where they follow each other, it is a sum; else there is no layout. Where one tensor
divides an axis, the pieces are divided there, until all tensors agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple, TypeAlias

from ...notation.axes import UNIT, Atom, Axes, Axis, Product, Sum, substitute
from ..trace.components import Groups
from ..trace.pieces import SPLIT, Factor, Piece, Unfit, split_all, split_factor, strides
from .families import Part, Tensor

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
MOST_ROUNDS: Final = 200  # each divides a piece once more


class Side(NamedTuple):
    """Factor number NUMBER of a piece on an axis: SIZE indices, STEP apart."""

    size: int
    step: int
    number: int


class Run(NamedTuple):
    """What piece number PART takes of an axis: its first index, and its sides, the slowest first."""

    part: int
    at: int
    sides: tuple[Side, ...]

    @property
    def end(self) -> int:
        """One more than the last index."""
        return self.at + sum((side.size - 1) * side.step for side in self.sides) + 1

    @property
    def wide(self) -> list[Side]:
        """The sides of more than one index."""
        return [side for side in self.sides if side.size > 1]


class Layout(NamedTuple):
    """The axes of a rule.

    Attributes:
        left: axes of each source, the index of a family first.
        right: axes of each target.
        sizes: of every atom.
        segments: for each atom that is a whole part of a sum, the pieces in that part.
    """

    left: tuple[Axes, ...]
    right: tuple[Axes, ...]
    sizes: dict[str, int]
    segments: dict[str, tuple[int, ...]]


class _Again(Exception):  # noqa: N818  (a request, not an error)
    """Start again with CHANGED pieces, by number."""

    def __init__(self, changed: dict[int, Piece]) -> None:
        self.changed = changed
        super().__init__()


def layout(sources: Sequence[Tensor], targets: Sequence[Tensor], parts: Sequence[Part]) -> Layout:
    """Return the axes under which PARTS say the same of SOURCES and of TARGETS.

    Raises:
        Unfit: there are none.
    """
    shapes = (tuple(tensor.shape for tensor in side) for side in (sources, targets))
    return _layout(*shapes, tuple(parts))


@lru_cache(maxsize=256)  # layers are alike
def _layout(here: Shapes, there: Shapes, parts: tuple[Part, ...]) -> Layout:
    pieces = [part.piece for part in parts]
    for _ in range(MOST_ROUNDS):
        pieces = [
            aligned(piece, here[part.source], there[part.target])
            for piece, part in zip(pieces, parts, strict=True)
        ]
        try:
            return _Attempt(pieces).layout(here, there, parts)
        except _Again as again:
            for number, piece in again.changed.items():
                pieces[number] = piece
    raise Unfit(f"after {MOST_ROUNDS} splits its tensors still divide an axis differently")


def aligned(piece: Piece, here: Sequence[int], there: Sequence[int]) -> Piece:
    """Return PIECE with its factors split at the axes of its source and of its target."""
    piece = piece._replace(factors=tuple(split_all(piece.factors, _bounds(there))))
    back = piece.flip()
    return back._replace(factors=tuple(split_all(back.factors, _bounds(here)))).flip()


def _bounds(shape: Sequence[int]) -> list[int]:
    return [step for step, size in zip(strides(shape), shape, strict=True) if size > 1]


class _Attempt:
    """Axes for fixed pieces; raises :class:`_Again` where a piece must be divided first."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.same = Groups()
        self.sizes: dict[str, int] = {}
        self.segments: dict[str, set[int]] = {}
        self.flipped = False
        self.unit = 1

    def layout(self, here: Shapes, there: Shapes, parts: Sequence[Part]) -> Layout:
        """Return the axes of all tensors, given by their shapes."""
        sides = []
        for flipped, shapes in ((True, here), (False, there)):
            self.flipped = flipped
            of = [part.source if flipped else part.target for part in parts]
            sides.append(
                [
                    self.axes(shape, [i for i, owner in enumerate(of) if owner == at])
                    for at, shape in enumerate(shapes)
                ]
            )
        left, right = (tuple(self.resolved(axes) for axes in side) for side in sides)
        sizes = {self.same.find(name): size for name, size in self.sizes.items()}
        segments: dict[str, tuple[int, ...]] = {}
        for name, members in self.segments.items():
            segments.setdefault(self.same.find(name), tuple(sorted(members)))
        return Layout(left, right, sizes, segments)

    def seen(self, number: int) -> Piece:
        """Return piece NUMBER with the side that is looked at as its result."""
        return self.pieces[number].flip() if self.flipped else self.pieces[number]

    def resolved(self, axes: Axes) -> Axes:
        """Return AXES with one name for all atoms that are the same."""
        return substitute(axes, {name: Atom(self.same.find(name)) for name in self.sizes})

    def axes(self, shape: Sequence[int], numbers: Sequence[int]) -> Axes:
        """Return the axes of a tensor of SHAPE that the pieces NUMBERS make up."""
        if sum(self.pieces[number].size for number in numbers) != prod(shape):
            raise Unfit("a part of a tensor is not used, or used twice")
        steps = strides(shape)
        wide = [axis for axis, size in enumerate(shape) if size > 1]
        runs: dict[int, list[Run]] = {axis: [] for axis in wide}
        for number in numbers:
            piece = self.seen(number)
            sides: dict[int, list[Side]] = {axis: [] for axis in wide}
            for at, factor in enumerate(piece.factors):
                axis = next((axis for axis in wide if steps[axis] <= factor.there), None)
                if axis is None or factor.there % steps[axis]:
                    raise Unfit(SPLIT)
                sides[axis].append(Side(factor.size, factor.there // steps[axis], at))
            for axis in wide:
                first = piece.at // steps[axis] % shape[axis]
                found = sorted(sides[axis], key=lambda side: (-side.step, -side.size))
                runs[axis].append(Run(number, first, tuple(found)))
        made = []
        for axis, size in enumerate(shape):
            self.unit = steps[axis]
            made.append(self.axis(size, runs[axis]) if axis in runs else UNIT)
        return tuple(made)

    def axis(self, size: int, runs: list[Run]) -> Axis:
        """Return the axis, or the part of one, of SIZE that RUNS make up."""
        if size == 1:
            return self.units(runs)
        steps = sorted({side.step for run in runs for side in run.wide}, reverse=True)
        outer = next((step for step in steps if step < size and _runs_through(size, runs, step)), 0)
        return self.product(size, runs, outer) if outer else self.sum(size, runs)

    def units(self, runs: list[Run]) -> Axis:
        """Return an axis of size 1, by its name where it has one."""
        if len({len(run.sides) for run in runs}) > 1:
            raise Unfit("an axis of size 1 stands in some of its parts only")
        columns = zip(*(run.sides for run in runs), strict=True)
        numbers = [run.part for run in runs]
        return _product(
            [self.atom(1, list(zip(numbers, column, strict=True))) for column in columns]
        )

    def product(self, size: int, runs: list[Run], outer: int) -> Axis:
        """Return an axis whose part of a step of OUTER or more all RUNS run through."""
        bounds = sorted({s.step for run in runs for s in run.wide if s.step >= outer}, reverse=True)
        self.divide(runs, bounds)
        factors: list[Axis] = []
        above = None
        for bound in bounds:
            before = [run._replace(sides=_units(run, bound, above)) for run in runs]
            members = [(run.part, s) for run in runs for s in run.wide if s.step == bound]
            factors += [self.units(before), self.atom((above or size) // bound, members)]
            above = bound
        inner = [run._replace(sides=_inside(run, outer)) for run in runs]
        return _product([*factors, self.axis(outer, inner)])

    def divide(self, runs: list[Run], bounds: list[int]) -> None:
        """Start again with a side split where it runs across one of BOUNDS."""
        for run in runs:
            for side in run.wide:
                for bound in bounds:
                    if side.step < bound < side.step * side.size:
                        raise _Again({run.part: self.split(run.part, side.number, bound)})

    def split(self, number: int, at: int, bound: int) -> Piece:
        """Return a piece with its factor AT split."""
        piece = self.seen(number)
        factors = list(piece.factors)
        factors[at : at + 1] = split_factor(factors[at], bound * self.unit)
        piece = piece._replace(factors=tuple(factors))
        return piece.flip() if self.flipped else piece

    def sum(self, size: int, runs: list[Run]) -> Axis:
        """Return an axis along which RUNS follow each other."""
        groups: list[list[Run]] = []
        end = 0
        for run in sorted(runs, key=lambda run: run.at):
            if groups and run.at < end:
                groups[-1].append(run)
            else:
                groups.append([run])
            end = max(end, run.end)
        bounds = [*(min(run.at for run in group) for group in groups), size]
        ends = [max(run.end for run in group) for group in groups]
        if len(groups) == 1 or bounds[0] or bounds[1:] != ends:
            raise Unfit(SPLIT)
        parts = []
        for group, (low, high) in zip(groups, pairwise(bounds), strict=True):
            inner = [run._replace(at=run.at - low) for run in group]
            parts.append(self.segment(high - low, inner))
        return Sum(tuple(parts))

    def segment(self, size: int, runs: list[Run]) -> Axis:
        """Return a part of a sum; one of size 1 needs a name to tell it from the others."""
        made = self.axis(size, runs)
        if made == UNIT:
            raise _Again({run.part: self.named(run) for run in runs})
        if isinstance(made, Atom):
            self.segments.setdefault(made.name, set()).update(run.part for run in runs)
        return made

    def named(self, run: Run) -> Piece:
        """Return the piece of RUN with a side of size 1 that stands beside the same one everywhere."""
        piece = self.seen(run.part)
        outside = [f for f in piece.factors if f.there > self.unit and f.size > 1]
        inside = [f for f in piece.factors if f.there < self.unit and f.size > 1]
        if run.sides or not (outside or inside):
            raise Unfit("a single number has no axis that could be named")
        if outside:
            here = min(outside, key=lambda factor: factor.there).here
        else:
            beside = max(inside, key=lambda factor: factor.there)
            here = beside.size * beside.here
        piece = piece._replace(factors=(*piece.factors, Factor(1, here, self.unit)))
        return piece.flip() if self.flipped else piece

    def atom(self, size: int, members: list[tuple[int, Side]]) -> Atom:
        """Return the atom that stands for the same factor in all MEMBERS."""
        names = [f"x{part}_{side.number}" for part, side in members]
        for name in names:
            self.same.unite(names[0], name)
            self.sizes[name] = size
        return Atom(names[0])


def _product(factors: Sequence[Axis]) -> Axis:
    """Return the axis that merges FACTORS, as plainly as it can be written."""
    flat: list[Axis] = []
    for factor in factors:
        flat += factor.factors if isinstance(factor, Product) else [factor]
    return flat[0] if len(flat) == 1 else Product(tuple(flat))


def _runs_through(size: int, runs: list[Run], step: int) -> bool:
    """Return whether every run has every index of SIZE that lies STEP apart from the next."""
    for run in runs:
        outer = [side for side in run.wide if side.step >= step]
        if run.at >= step or prod(side.size for side in outer) * step != size:
            return False
        if any(side.step % step for side in outer):
            return False
    return True


def _units(run: Run, bound: int, above: int | None) -> tuple[Side, ...]:
    """Return the sides of size 1 that stand before the one of step BOUND."""
    return tuple(
        side
        for side in run.sides
        if side.size == 1 and bound < side.step and (above is None or side.step <= above)
    )


def _inside(run: Run, outer: int) -> tuple[Side, ...]:
    """Return the sides that lie within OUTER."""
    return tuple(s for s in run.sides if s.step < outer or (s.size == 1 and s.step == outer))
