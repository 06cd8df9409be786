"""The axes of a tensor as a tree, and the pieces that a tensor is made of.

An axis is an atom (``d``), a product that merges axes into one (``(h d)``, the last one fastest) or
a sum of axes end to end (``(q + k + v)``). Choosing one summand of every sum leaves a
*piece*: a plain array over named atoms. Two sides of a rule are two layouts of the same pieces, so
``split`` on one side and ``join`` on the other is the map, and the same with the sides swapped is
its inverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from ...values import Array


@dataclass(frozen=True)
class Atom:
    """An axis that is never cut; a number is an axis named for its size."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Product:
    """Axes merged into one, row-major; of no axes, it is the axis of size 1."""

    factors: tuple[Axis, ...]

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.factors))})" if self.factors else "1"


@dataclass(frozen=True)
class Sum:
    """Axes end to end."""

    parts: tuple[Axis, ...]

    def __str__(self) -> str:
        return f"({' + '.join(map(str, self.parts))})"


Axis: TypeAlias = Atom | Product | Sum
Axes: TypeAlias = tuple[Axis, ...]
Sizes: TypeAlias = Mapping[str, int]
Key: TypeAlias = tuple[str, ...]  # names of a piece's atoms, sorted
Pieces: TypeAlias = dict[Key, Array]  # axes in the order of the key

UNIT = Product(())


def show(axes: Axes) -> str:
    """Print AXES as they stand in a map.

    >>> show((Sum((Atom("q"), Atom("k"))), UNIT, Atom("d")))
    '[(q + k) 1 d]'
    """
    return f"[{' '.join(map(str, axes))}]"


def factors(axes: Axes) -> tuple[Atom | Sum, ...]:
    """Return AXES with every product taken apart."""
    return tuple(
        factor
        for axis in axes
        for factor in (factors(axis.factors) if isinstance(axis, Product) else (axis,))
    )


def names(axes: Axes) -> Iterator[str]:
    """Yield the name of every atom in AXES, as often as it stands there."""
    for factor in factors(axes):
        if isinstance(factor, Sum):
            yield from names(factor.parts)
        else:
            yield factor.name


def choices(axes: Axes) -> list[tuple[str, ...]]:
    """Return the pieces of a tensor with AXES, each as its atoms in storage order.

    >>> choices((Product((Atom("h"), Sum((Atom("a"), Atom("b"))))), Atom("c")))
    [('h', 'a', 'c'), ('h', 'b', 'c')]
    """
    pieces: list[tuple[str, ...]] = [()]
    for factor in factors(axes):
        parts = factor.parts if isinstance(factor, Sum) else (factor,)
        ends = [choice for part in parts for choice in _choices_of(part)]
        pieces = [(*piece, *end) for piece in pieces for end in ends]
    return pieces


def _choices_of(axis: Axis) -> list[tuple[str, ...]]:
    return [(axis.name,)] if isinstance(axis, Atom) else choices((axis,))


def extent(axis: Axis, sizes: Sizes) -> int:
    """Return the size of AXIS.

    Raises:
        KeyError: the size of an atom is unknown.
    """
    if isinstance(axis, Atom):
        return int(axis.name) if axis.name.isdigit() else sizes[axis.name]
    if isinstance(axis, Sum):
        return sum(extent(part, sizes) for part in axis.parts)
    return prod(extent(factor, sizes) for factor in axis.factors)


def shape(axes: Axes, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape of a tensor with AXES."""
    return tuple(extent(axis, sizes) for axis in axes)


def first_sum(flat: tuple[Atom | Sum, ...]) -> int | None:
    """Return where the first sum stands, ``None`` if all are atoms."""
    return next((at for at, factor in enumerate(flat) if isinstance(factor, Sum)), None)


def split(array: Array, axes: Axes, sizes: Sizes) -> Pieces:
    """Take ARRAY, whose axes are AXES, apart into its pieces (views where numpy can).

    >>> fused = np.arange(6).reshape(3, 2)
    >>> axes = (Sum((Atom("q"), Atom("k"))), Atom("d"))
    >>> split(fused, axes, {"q": 2, "k": 1, "d": 2})[("d", "k")].tolist()
    [[4], [5]]
    """
    flat = factors(axes)
    array = array.reshape(shape(flat, sizes))
    at = first_sum(flat)
    if at is None:
        order = list(names(flat))
        return {
            tuple(sorted(order)): array.transpose(sorted(range(len(order)), key=order.__getitem__))
        }
    pieces: Pieces = {}
    start = 0
    for part in _sum(flat[at]).parts:
        stop = start + extent(part, sizes)
        cut = array[(slice(None),) * at + (slice(start, stop),)]
        pieces |= split(cut, (*flat[:at], part, *flat[at + 1 :]), sizes)
        start = stop
    return pieces


def join(pieces: Mapping[Key, Array], axes: Axes, sizes: Sizes) -> Array:
    """Return the array with AXES that PIECES make: the inverse of ``split``.

    >>> pieces = {("d", "q"): np.zeros((2, 2)), ("d", "k"): np.ones((2, 1))}
    >>> sizes = {"q": 2, "k": 1, "d": 2}
    >>> join({tuple(sorted(k)): v for k, v in pieces.items()},
    ...      (Sum((Atom("q"), Atom("k"))), Atom("d")), sizes).tolist()
    [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """
    flat = factors(axes)
    at = first_sum(flat)
    if at is None:
        order = list(names(flat))
        key = tuple(sorted(order))
        array = pieces[key].transpose([key.index(name) for name in order])
    else:
        parts = _sum(flat[at]).parts
        ends = [join(pieces, (*flat[:at], part, *flat[at + 1 :]), sizes) for part in parts]
        array = np.concatenate(ends, axis=at)
    return array.reshape(shape(axes, sizes))


def _sum(factor: Atom | Sum) -> Sum:
    assert isinstance(factor, Sum)  # noqa: S101  (first_sum found it)
    return factor


def substitute(axes: Axes, by: Mapping[str, Axis]) -> Axes:
    """Return AXES with the atoms named in BY replaced."""
    return tuple(_substitute(axis, by) for axis in axes)


def _substitute(axis: Axis, by: Mapping[str, Axis]) -> Axis:
    if isinstance(axis, Atom):
        return by.get(axis.name, axis)
    if isinstance(axis, Sum):
        return Sum(substitute(axis.parts, by))
    return Product(substitute(axis.factors, by))
