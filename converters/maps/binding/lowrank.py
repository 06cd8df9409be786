"""The action of a step on low-rank updates: rows act on B, columns on A, leading axes on both.

The update of a tensor ``[rows columns]`` is a product of two factors, and a choice of a summand in
rows and one in columns is a piece, itself a product of a piece of B and a piece of A. A source
therefore fills a rectangle of the target: pieces of B in its rows, zeros in the others, and the
same for A. Several sources lie side by side along the rank, which is exact: the sum over the ranks
is the sum of the rectangles. Where they have one A, as after a split, their rows lie one above
another instead, and the rank stays; so a join undoes a split byte for byte.

Axes before the last two count matrices that are updated one by one, and so does a capture that is
an axis: the experts of a layer are a stack of updates on one side and an update each on the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from ....errors import UnsupportedError
from ...values import Array, LowRank, stack, widest, with_scale
from ..notation.axes import Atom, Axes, Axis, Key, Pieces, choices, extent, join, names, split
from ..notation.rules import Affine
from .plan import Bound, Step

RANK: Final = Atom(" rank")  # no axis of a map can be called so


class Sides(NamedTuple):
    """The axes of a weight, or of a family of weights stacked, as an update sees them."""

    lead: Axes
    rows: Axis
    columns: Axis


class Placed(NamedTuple):
    """An update in the layout of a target: pieces of its factors, with those that it fills."""

    a: Pieces
    b: Pieces
    rank: int
    scale: float
    magnitude: Pieces


def low_rank(step: Step, updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return the updates of the targets of STEP; of a stack, tensors without one have zeros.

    Raises:
        UnsupportedError: the result would not be of low rank, or DoRA's norms would change.
    """
    if step.rule.reinterprets:
        raise UnsupportedError("low-rank updates are of numbers, and the axes here are of bytes")
    scaled = {
        name: _scaled(updates[name], bound, step, -1)
        for bound in step.sources
        for name in bound.names
        if name in updates
    }
    moved: dict[str, LowRank] = {}
    if step.rule.left[0].axes is None:
        moved = {step.target_names[0]: scaled[step.source_names[0]]}
    else:
        found = [(bound, update) for bound in step.sources if (update := _gather(bound, scaled))]
        for target in step.targets:
            moved |= _named(target, _assemble(target, found, step.sizes))
    return {
        name: _scaled(moved[name], bound, step, 1)
        for bound in step.targets
        for name in bound.names
        if name in moved
    }


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


def _gather(bound: Bound, updates: Mapping[str, LowRank]) -> LowRank | None:
    """Return the update of BOUND, stacked if it is a family; ``None`` if there is none."""
    there = [updates[name] for name in bound.names if name in updates]
    if not there or not bound.family:
        return there[0] if there else None
    nothing = _nothing(there[0])
    whole = stack([updates.get(name, nothing) for name in bound.names])
    a, b = (x.reshape(*bound.family, *x.shape[1:]) for x in (whole.a, whole.b))
    return replace(whole, a=a, b=b)


def _nothing(like: LowRank) -> LowRank:
    """Return an update of rank 0 for a weight of the shape that LIKE is for."""
    return replace(like, a=like.a[..., :0, :], b=like.b[..., :0])


def _named(bound: Bound, update: LowRank | None) -> Iterator[tuple[str, LowRank]]:
    """Yield UPDATE under the name of BOUND, or in parts if that is a family."""
    if update is None:
        return
    for at, name in enumerate(bound.names):
        index = tuple(map(int, np.unravel_index(at, bound.family)))
        yield name, update.part(index) if bound.family else update


def _assemble(
    target: Bound, found: Sequence[tuple[Bound, LowRank]], sizes: Mapping[str, int]
) -> LowRank | None:
    """Return the update of TARGET, ``None`` if nothing updates it."""
    parts: list[Placed] = []
    for source, update in found:
        alike = with_scale(update, parts[0].scale) if parts else update
        if placed := _place(source, target, alike, sizes):
            parts.append(placed)
    if not parts:
        return None
    to = _sides(target)
    magnitude = _magnitude(parts, to, sizes)
    parts = _shared(_shared(parts, "a", "b"), "b", "a")
    a = _side_by_side([(part.a, part.rank) for part in parts], (*to.lead, to.columns), sizes)
    b = _side_by_side([(part.b, part.rank) for part in parts], (*to.lead, to.rows), sizes)
    return LowRank(np.swapaxes(a, -1, -2), b, parts[0].scale, magnitude)


def _place(
    source: Bound, target: Bound, update: LowRank, sizes: Mapping[str, int]
) -> Placed | None:
    """Return UPDATE of SOURCE in the layout of TARGET, ``None`` if it does not reach there."""
    ours, theirs = _sides(source), _sides(target)
    held = set(_keys(source.axes))
    wanted = product(*(_keys(axes) for axes in (theirs.lead, (theirs.rows,), (theirs.columns,))))
    reached = {keys for keys in wanted if _key(sum(keys, ())) in held}
    if not reached:
        return None
    factors = (ours.rows, update.b), (ours.columns, np.swapaxes(update.a, -1, -2))
    for rows, columns in (factors, factors[::-1]):
        filled = [
            set(_keys(own)) & set(_keys(other))
            for own, other in (
                (ours.lead, theirs.lead),
                ((rows[0],), (theirs.rows,)),
                ((columns[0],), (theirs.columns,)),
            )
        ]
        if reached == set(product(*filled)):
            break
    else:
        raise UnsupportedError(_mixed(ours, theirs))
    magnitude: Pieces = {}
    if update.magnitude is not None:
        whole = set(_keys((ours.columns,))) == filled[2] == set(_keys((theirs.columns,)))
        if not whole or rows is not factors[0] or ours.lead or theirs.lead:
            raise UnsupportedError("DoRA norms are of whole rows, and the rows change")
        magnitude = split(update.magnitude, (ours.rows,), sizes)
    b, a = (
        _pieces(array, (*ours.lead, axis), product(filled[0], keys), sizes)
        for (axis, array), keys in ((rows, filled[1]), (columns, filled[2]))
    )
    return Placed(a, b, update.rank, update.scale, magnitude)


def _mixed(ours: Sides, theirs: Sides) -> str:
    """Say why an update of a weight with the axes OURS is none of one with THEIRS."""
    if set(names(ours.lead)) == set(names(theirs.lead)):
        return "rows and columns mix, so the update would not be of low rank"
    return "an axis of the matrix on one side counts matrices on the other; merge the adapter"


def _sides(bound: Bound) -> Sides:
    """Return the axes of BOUND, the last two apart."""
    if len(bound.axes) - len(bound.family) < 2:
        raise UnsupportedError("low-rank updates are of weights with two axes or more")
    *lead, rows, columns = bound.axes
    return Sides(tuple(lead), rows, columns)


def _pieces(
    factor: Array, axes: Axes, wanted: Iterator[tuple[Key, ...]], sizes: Mapping[str, int]
) -> Pieces:
    """Return those pieces of FACTOR, shape (..., size, rank), that are WANTED."""
    have = split(factor, (*axes, RANK), {**sizes, RANK.name: factor.shape[-1]})
    keys = (_key((*sum(parts, ()), RANK.name)) for parts in wanted)
    return {key: have[key] for key in keys}


def _shared(parts: Sequence[Placed], same: str, other: str) -> list[Placed]:
    """Return PARTS, as one those of which the factor SAME has the same bytes.

    They fill the same on that side, and no two of them the same piece of the weight, so that they
    fill different things on the OTHER side.
    """
    kept: list[Placed] = []
    for part in parts:
        for at, earlier in enumerate(kept):
            if _equal(getattr(part, same), getattr(earlier, same)):
                both = getattr(earlier, other) | getattr(part, other)
                kept[at] = earlier._replace(**{other: both})
                break
        else:
            kept.append(part)
    return kept


def _equal(one: Pieces, other: Pieces) -> bool:
    """Return whether two factors have the same pieces, byte for byte."""
    return one.keys() == other.keys() and all(
        (piece.dtype, piece.shape) == (other[key].dtype, other[key].shape)
        and piece.tobytes() == other[key].tobytes()
        for key, piece in one.items()
    )


def _side_by_side(
    blocks: Sequence[tuple[Pieces, int]], axes: Axes, sizes: Mapping[str, int]
) -> Array:
    """Return BLOCKS, each with its rank, side by side along the rank; zeros where one has no piece."""
    dtype = widest(piece.dtype for pieces, _ in blocks for piece in pieces.values())
    whole: Pieces = {}
    for key in (_key((*choice, RANK.name)) for choice in choices(axes)):
        each = []
        for pieces, rank in blocks:
            here = {**sizes, RANK.name: rank}
            piece = pieces.get(key, np.zeros([extent(Atom(atom), here) for atom in key], dtype))
            each.append(piece.astype(dtype, copy=False))
        whole[key] = np.concatenate(each, axis=key.index(RANK.name))
    total = sum(rank for _, rank in blocks)
    return join(whole, (*axes, RANK), {**sizes, RANK.name: total})


def _magnitude(parts: Sequence[Placed], target: Sides, sizes: Mapping[str, int]) -> Array | None:
    """Return the DoRA norms of a TARGET, ``None`` for plain updates."""
    pieces: Pieces = {}
    for part in parts:
        pieces |= part.magnitude
    if not pieces:
        return None
    if not set(_keys((target.rows,))) <= pieces.keys() or not all(part.magnitude for part in parts):
        raise UnsupportedError("DoRA norms are missing for some of the rows")
    return join(pieces, (target.rows,), sizes)


def _keys(axes: Axes) -> list[Key]:
    return [_key(choice) for choice in choices(axes)]


def _key(atoms: Sequence[str]) -> Key:
    return tuple(sorted(atoms))
