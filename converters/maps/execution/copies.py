"""Which byte ranges of the sources a target is made of, where it is made of whole ranges.

A piece in a given order of axes is an address space. A tensor is a sequence of extents in such
spaces; where source and target cover the same space, the target can be copied without being held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias

from ..notation.axes import Atom, Axes, Sum, extent, factors

MOST_EXTENTS: Final = 4096  # more, shorter ranges cost more than holding the tensor does

# A piece by all its atoms, and the order in which those larger than 1 are stored.
Space: TypeAlias = tuple[frozenset[str], tuple[str, ...]]
Layout: TypeAlias = tuple[Axes, Sequence[str]]  # axes of all tensors stacked, their names


class Extent(NamedTuple):
    """SIZE elements from START on in the address space of a piece."""

    space: Space
    start: int
    size: int


class Range(NamedTuple):
    """Elements START to STOP of the tensor SOURCE."""

    source: str
    start: int
    stop: int


Placed: TypeAlias = tuple[int, Range]  # where an extent starts in its space, where it is stored


def count_extents(flat: Sequence[Atom | Sum], sizes: Mapping[str, int]) -> int:
    """Return how many extents a tensor of the factors FLAT has."""
    if not any(isinstance(factor, Sum) for factor in flat):
        return 1
    head, rest = flat[0], flat[1:]
    if isinstance(head, Sum):
        return sum(count_extents((*factors((part,)), *rest), sizes) for part in head.parts)
    return extent(head, sizes) * count_extents(rest, sizes)


def extents(axes: Axes, sizes: Mapping[str, int]) -> list[Extent]:
    """Return the extents of a tensor with AXES, in storage order.

    >>> from weighbridge.converters.maps.notation.axes import Atom, Sum
    >>> found = extents((Sum((Atom("q"), Atom("k"))), Atom("d")), {"q": 2, "k": 3, "d": 4})
    >>> [(space[1], start, size) for space, start, size in found]
    [(('q', 'd'), 0, 8), (('k', 'd'), 0, 12)]
    """
    return list(_extents(factors(axes), (), 0, sizes))


def _extents(
    flat: Sequence[Atom | Sum], before: tuple[str, ...], index: int, sizes: Mapping[str, int]
) -> Iterator[Extent]:
    """Yield the extents of FLAT at the INDEX, row-major, of the atoms that stand BEFORE it."""
    if not any(isinstance(factor, Sum) for factor in flat):
        atoms = [*before, *(factor.name for factor in flat if isinstance(factor, Atom))]
        size = prod(extent(factor, sizes) for factor in flat)
        order = tuple(name for name in atoms if extent(Atom(name), sizes) != 1)
        yield Extent((frozenset(atoms), order), index * size, size)
        return
    head, rest = flat[0], flat[1:]
    if isinstance(head, Sum):
        for part in head.parts:
            yield from _extents((*factors((part,)), *rest), before, index, sizes)
        return
    count = extent(head, sizes)
    for i in range(count):
        yield from _extents(rest, (*before, head.name), index * count + i, sizes)


def copies(
    sources: Sequence[Layout], targets: Sequence[Layout], sizes: Mapping[str, int]
) -> dict[str, list[Range]] | None:
    """Return the ranges that make up each target, ``None`` if they are not whole or too many.

    >>> from weighbridge.converters.maps.notation.axes import Atom
    >>> o, e = Atom("o"), Atom("e")
    >>> copies([((e, o), ("w.0", "w.1"))], [((e, o), ("w",))], {"e": 2, "o": 3})
    {'w': [Range(source='w.0', start=0, stop=3), Range(source='w.1', start=0, stop=3)]}
    """
    layouts = [*sources, *targets]
    if any(count_extents(factors(axes), sizes) > MOST_EXTENTS for axes, _ in layouts):
        return None
    table: dict[Space, list[Placed]] = {}
    for space, placed in _placed(sources, sizes):
        table.setdefault(space, []).append(placed)
    found: dict[str, list[Range]] = {name: [] for _, family in targets for name in family}
    for space, (start, (member, begin, end)) in _placed(targets, sizes):
        if space not in table:
            return None
        for range_ in _cover(start, start + end - begin, table[space]):
            _append(found[member], range_)
    return found


def _placed(layouts: Sequence[Layout], sizes: Mapping[str, int]) -> Iterator[tuple[Space, Placed]]:
    """Yield the extents of LAYOUTS, cut where one tensor of a family ends and the next begins."""
    for axes, family in layouts:
        stored = extents(axes, sizes)
        each = sum(piece.size for piece in stored) // len(family)
        at = 0
        for space, first, size in stored:
            for done, range_ in _cut(at, size, each, family):
                yield space, (first + done, range_)
            at += size


def _cut(at: int, size: int, each: int, family: Sequence[str]) -> Iterator[tuple[int, Range]]:
    """Yield the elements AT ... AT + SIZE of a FAMILY, tensor by tensor, and how many came before."""
    done = 0
    while done < size:
        member, begin = divmod(at + done, each)
        end = min(each, begin + size - done)
        yield done, Range(family[member], begin, end)
        done += end - begin


def _cover(start: int, stop: int, placed: Sequence[Placed]) -> Iterator[Range]:
    """Yield where the elements START to STOP of an address space are stored."""
    at = bisect_right(placed, start, key=lambda item: item[0]) - 1
    while start < stop:
        first, (source, begin, end) = placed[at]
        size = min(stop, first + end - begin) - start
        yield Range(source, begin + start - first, begin + start - first + size)
        start += size
        at += 1


def _append(parts: list[Range], range_: Range) -> None:
    """Add RANGE to PARTS, as one with the last where it goes on from there."""
    if parts and (parts[-1].source, parts[-1].stop) == (range_.source, range_.start):
        range_ = Range(range_.source, parts.pop().start, range_.stop)
    parts.append(range_)
