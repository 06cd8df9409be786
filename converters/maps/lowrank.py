"""The action of a step on low-rank updates: rows act on B, columns on A.

The update of a tensor ``[rows columns]`` is a product of two factors, and a choice of a summand in
rows and one in columns is a piece, itself a product of a piece of B and a piece of A. A source
therefore fills a rectangle of the target: pieces of B in its rows, zeros in the others, and the
same for A. Several sources lie side by side along the rank, which is exact: the sum over the ranks
is the sum of the rectangles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ..values import Array, LowRank
from .axes import Atom, Axis, Key, Pieces, choices, extent, join, split
from .plan import Bound, Step
from .rules import Affine

RANK: Final = Atom(" rank")  # no axis of a map can be called so


class Factors(NamedTuple):
    """An update laid out for a target, and which of the target's rows and columns it fills."""

    a: Array
    b: Array
    scale: float
    magnitude: Pieces
    whole_rows: bool


def low_rank(step: Step, updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return the updates of the targets of STEP.

    Raises:
        UnsupportedError: the result would not be of low rank, or DoRA's norms would change.
    """
    bounds = (*step.sources, *step.targets)
    scaled = {
        name: _scaled(update, _bound(step, name), step, -1) for name, update in updates.items()
    }
    if step.rule.left[0].axes is None:
        moved = {step.target_names[0]: scaled[step.source_names[0]]}
    elif any(bound.family for bound in bounds):
        raise UnsupportedError("low-rank updates do not stack: each has factors of its own")
    elif any(len(bound.axes) != 2 for bound in bounds):
        raise UnsupportedError("low-rank updates are of weights with two axes")
    else:
        found = {bound.names[0]: _assemble(step, bound, scaled) for bound in step.targets}
        moved = {name: update for name, update in found.items() if update is not None}
    return {name: _scaled(update, _bound(step, name), step, 1) for name, update in moved.items()}


def _bound(step: Step, name: str) -> Bound:
    return next(bound for bound in (*step.sources, *step.targets) if name in bound.names)


def _scaled(update: LowRank, bound: Bound, step: Step, power: int) -> LowRank:
    """Return UPDATE as it is after the factors of ``* c`` in the term of BOUND."""
    for change in bound.term.changes:
        if not isinstance(change, Affine):
            continue
        if update.magnitude is not None:
            raise UnsupportedError(f"DoRA norms change under `{change}`")
        if change.symbol == "*":
            update = replace(update, scale=update.scale * change.value(step.amounts) ** power)
    return update


def _assemble(step: Step, target: Bound, updates: Mapping[str, LowRank]) -> LowRank | None:
    """Return the update of TARGET, ``None`` if nothing updates it."""
    parts = [
        part
        for source in step.sources
        if source.names[0] in updates
        if (part := _place(source, target, updates[source.names[0]], step.sizes))
    ]
    if not parts:
        return None
    magnitude = _magnitude(parts, target, step.sizes)
    if len({part.scale for part in parts}) == 1:
        scale, blocks = parts[0].scale, [part.b for part in parts]
    else:
        scale, blocks = 1.0, [part.b.astype(np.float64) * part.scale for part in parts]
    a = np.concatenate([part.a for part in parts])
    return LowRank(a, np.concatenate(blocks, axis=1), scale, magnitude)


def _place(
    source: Bound, target: Bound, update: LowRank, sizes: Mapping[str, int]
) -> Factors | None:
    """Return UPDATE of SOURCE laid out as TARGET, ``None`` if it does not reach there."""
    reached = {
        (row, column)
        for row in _keys(target.axes[0])
        for column in _keys(target.axes[1])
        if _key(row + column) in {_key(piece) for piece in choices(source.axes)}
    }
    if not reached:
        return None
    sides = [(source.axes[0], update.b), (source.axes[1], update.a.T)]
    for turned in (False, True):
        (row_axis, b), (column_axis, a) = reversed(sides) if turned else sides
        rows, columns = set(_keys(row_axis)), set(_keys(column_axis))
        row_hits = rows & set(_keys(target.axes[0]))
        column_hits = columns & set(_keys(target.axes[1]))
        if reached != {(row, column) for row in row_hits for column in column_hits}:
            continue
        whole_rows = not turned and column_hits == columns == set(_keys(target.axes[1]))
        magnitude = {} if update.magnitude is None else split(update.magnitude, (row_axis,), sizes)
        if magnitude and not whole_rows:
            raise UnsupportedError("DoRA norms are of whole rows, and the rows change")
        return Factors(
            _lay_out(a, column_axis, target.axes[1], sizes).T,
            _lay_out(b, row_axis, target.axes[0], sizes),
            update.scale,
            magnitude,
            whole_rows,
        )
    raise UnsupportedError("rows and columns mix, so the update would not be of low rank")


def _lay_out(factor: Array, source: Axis, target: Axis, sizes: Mapping[str, int]) -> Array:
    """Return FACTOR (size, rank), laid out along SOURCE, as TARGET; zeros where it has no piece."""
    sizes = {**sizes, RANK.name: factor.shape[1]}
    have = split(factor, (source, RANK), sizes)
    for key in _keys(target):
        wanted = _key((*key, RANK.name))
        if wanted not in have:
            shape = [extent(Atom(name), sizes) for name in wanted]
            have[wanted] = np.zeros(shape, factor.dtype)
    return join(have, (target, RANK), sizes)


def _magnitude(parts: Sequence[Factors], target: Bound, sizes: Mapping[str, int]) -> Array | None:
    """Return the DoRA norms of TARGET, ``None`` for plain updates."""
    pieces: Pieces = {}
    for part in parts:
        pieces |= part.magnitude
    if not pieces:
        return None
    if not set(_keys(target.axes[0])) <= pieces.keys() or not all(part.magnitude for part in parts):
        raise UnsupportedError("DoRA norms are missing for some of the rows")
    return join(pieces, (target.axes[0],), sizes)


def _keys(axis: Axis) -> list[Key]:
    return [_key(choice) for choice in choices((axis,))]


def _key(names: Sequence[str]) -> Key:
    return tuple(sorted(names))
