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
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from ...errors import UnsupportedError
from ..values import Array, LowRank
from .axes import Atom, Axis, Key, Pieces, choices, extent, join, split
from .plan import Bound, Step
from .rules import Affine

RANK: Final = Atom(" rank")  # no axis of a map can be called so


class Factor(NamedTuple):
    """A side of an update, shape (size, rank), and the axis of the weight that it spans."""

    axis: Axis
    array: Array


class Placed(NamedTuple):
    """An update laid out for a target, zero in the rows and columns that it does not fill."""

    a: Array
    b: Array
    scale: float
    magnitude: Pieces


def low_rank(step: Step, updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return the updates of the targets of STEP.

    Raises:
        UnsupportedError: the result would not be of low rank, or DoRA's norms would change.
    """
    if step.rule.reinterprets:
        raise UnsupportedError("low-rank updates are of numbers, and the axes here are of bytes")
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
) -> Placed | None:
    """Return UPDATE of SOURCE laid out as TARGET, ``None`` if it does not reach there."""
    held = {_key(piece) for piece in choices(source.axes)}
    wanted = product(_keys(target.axes[0]), _keys(target.axes[1]))
    reached = {(row, column) for row, column in wanted if _key(row + column) in held}
    if not reached:
        return None
    straight = Factor(source.axes[0], update.b), Factor(source.axes[1], update.a.T)
    for rows, columns in (straight, straight[::-1]):
        sides = zip((rows.axis, columns.axis), target.axes, strict=True)
        filled = [set(_keys(ours)) & set(_keys(theirs)) for ours, theirs in sides]
        if reached == set(product(*filled)):
            break
    else:
        raise UnsupportedError("rows and columns mix, so the update would not be of low rank")
    magnitude: Pieces = {}
    if update.magnitude is not None:
        whole = set(_keys(source.axes[1])) == filled[1] == set(_keys(target.axes[1]))
        if not whole or rows is not straight[0]:
            raise UnsupportedError("DoRA norms are of whole rows, and the rows change")
        magnitude = split(update.magnitude, (rows.axis,), sizes)
    b, a = (
        _lay_out(*side, axis, sizes)
        for side, axis in zip((rows, columns), target.axes, strict=True)
    )
    return Placed(a.T, b, update.scale, magnitude)


def _lay_out(source: Axis, factor: Array, target: Axis, sizes: Mapping[str, int]) -> Array:
    """Return FACTOR (size, rank), laid out along SOURCE, as TARGET; zeros where it has no piece."""
    sizes = {**sizes, RANK.name: factor.shape[1]}
    have = split(factor, (source, RANK), sizes)
    for key in _keys(target):
        wanted = _key((*key, RANK.name))
        if wanted not in have:
            shape = [extent(Atom(name), sizes) for name in wanted]
            have[wanted] = np.zeros(shape, factor.dtype)
    return join(have, (target, RANK), sizes)


def _magnitude(parts: Sequence[Placed], target: Bound, sizes: Mapping[str, int]) -> Array | None:
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
