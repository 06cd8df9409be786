"""Solve the sizes of atoms from the shapes of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from ..notation.axes import Atom, Axes, Axis, Sum, extent, names


class Equation(NamedTuple):
    """An axis, the size that it has, and where."""

    axis: Axis
    size: int
    where: str


def equations(axes: Axes, shape: Iterable[int], where: str) -> list[Equation]:
    """Return one equation per axis of the tensor WHERE."""
    return [Equation(axis, size, where) for axis, size in zip(axes, shape, strict=True)]


def solve(pending: list[Equation], sizes: dict[str, int]) -> list[str]:
    """Add to SIZES every atom that the PENDING equations determine; return what contradicts.

    An equation with one unknown is solved by dividing products and subtracting sums, until none
    is left that says something new.

    >>> sizes = {"a": 2}
    >>> solve([Equation(Sum((Atom("a"), Atom("b"))), 5, "x")], sizes), sizes
    ([], {'a': 2, 'b': 3})
    """
    problems = []
    while pending:
        rest = []
        for equation in pending:
            unknown = _unknown(equation.axis, sizes)
            if len(unknown) > 1:
                rest.append(equation)
            elif contradiction := _solve_one(equation, unknown, sizes):
                problems.append(contradiction)
        if len(rest) == len(pending):
            break
        pending = rest
    return problems


def _unknown(axis: Axis, sizes: dict[str, int]) -> list[str]:
    return [name for name in names((axis,)) if name not in sizes and not name.isdigit()]


def _solve_one(equation: Equation, unknown: list[str], sizes: dict[str, int]) -> str | None:
    """Solve an EQUATION of at most one unknown; return the contradiction if there is one."""
    axis, size, where = equation
    if unknown:
        value = _peel(axis, size, unknown[0], sizes)
        if value is not None:
            sizes[unknown[0]] = value
            return None
        return f"{where}: axis {axis} is {size}, which no size of {unknown[0]} makes{_known(axis, sizes)}"
    if extent(axis, sizes) == size:
        return None
    return f"{where}: axis {axis} is {size}, expected {extent(axis, sizes)}{_known(axis, sizes)}"


def _peel(axis: Axis, size: int, unknown: str, sizes: dict[str, int]) -> int | None:
    """Return the size of UNKNOWN that makes AXIS as large as SIZE, ``None`` if none does."""
    if isinstance(axis, Atom):
        return size
    children = axis.parts if isinstance(axis, Sum) else axis.factors
    inner = next(child for child in children if unknown in names((child,)))
    known = [extent(child, sizes) for child in children if child is not inner]
    if isinstance(axis, Sum):
        left = size - sum(known)
        return _peel(inner, left, unknown, sizes) if left >= 0 else None
    if prod(known) == 0 or size % prod(known):
        return None
    return _peel(inner, size // prod(known), unknown, sizes)


def _known(axis: Axis, sizes: dict[str, int]) -> str:
    pairs = [f"{name} = {sizes[name]}" for name in dict.fromkeys(names((axis,))) if name in sizes]
    return f" ({', '.join(pairs)})" if pairs else ""
