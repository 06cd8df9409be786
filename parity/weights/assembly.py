"""Explain tensors that are made of several of the reference's, or of some rows of one.

Experts stacked or apart, projections fused or split: libraries differ in where they cut. Parts are
found by value, the likeliest by name first; nobody says here how a map would cut.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np

from ...converters.common.dtypes import CODE, FLOATS, NUMPY
from ...converters.values import Array
from .consecutive import Run, runs_of
from .orders import out_of_turn, ranges, shorten
from .places import Place, Whole, describe_rows, find_place, may_hold, whole_of
from .reference_index import Explanation, ReferenceIndex, ranked
from .sketches.casts import cast, fingerprint
from .sketches.sketch import Sketch, Weights, row_shape, row_sums, squeeze

TRIES: Final = 24  # tensors opened in vain to look for one; the likeliest by name come first
KEPT: Final = 3  # wholes kept open
STACK: Final = 3  # axes of a stack of matrices


def assemble(index: ReferenceIndex, name: str, array: Array) -> Explanation | None:
    """Explain ARRAY as whole reference tensors along one of its axes, by hashes alone.

    >>> import numpy as np
    >>> from .reference_index import Permitted
    >>> from .sketches.sketch import sketch
    >>> experts = {f"e.{i}.w": np.arange(6.0).reshape(2, 3) + 10 * i for i in range(2)}
    >>> index = ReferenceIndex({k: sketch(a) for k, a in experts.items()}, None, {}, Permitted())
    >>> assemble(index, "e.w", np.stack(list(experts.values()))).kind
    'stacked'
    """
    for axis in range(array.ndim if array.ndim > 1 else 0):
        table = np.moveaxis(array, axis, 0)
        for kind, search in (("stacked", stacked_parts), ("joined", joined_parts)):
            parts = list(search(index, name, table))
            if parts:
                return made_of_parts(index, name, array, kind, axis, parts)
    for axis, table in joins(array):
        parts = list(joined_parts(index, name, table))
        if parts:
            return made_of_parts(index, name, array, "joined", axis, parts)
    return None


def joins(array: Array) -> Iterator[tuple[int, Array]]:
    """Yield ARRAY as one table for each axis along which each index of a first axis may be joined of several.

    >>> [(axis, table.shape) for axis, table in joins(np.zeros((4, 6, 5)))]
    [(1, (24, 5)), (2, (20, 6))]
    """
    if array.ndim == 1:
        yield 0, array
    if array.ndim == STACK:
        for axis in (1, 2):
            table = np.moveaxis(array, axis, 1)
            yield axis, table.reshape(-1, table.shape[2])


def made_of_parts(
    index: ReferenceIndex,
    name: str,
    array: Array,
    kind: str,
    axis: int,
    parts: Sequence[Explanation],
) -> Explanation:
    """Return the explanation of ARRAY by PARTS along AXIS."""
    sources = [str(part.source) for part in parts]
    bad = [part for part in parts if not part.ok]
    wrong = [f"{part.name}: {part.detail}" for part in bad]
    kind = "inconclusive" if {part.kind for part in bad} == {"inconclusive"} else kind
    casts = sum(part.kind == "cast" for part in parts)
    rounded = f", {casts} of them cast" if casts else ""
    detail = f"{len(parts)} tensors along axis {axis}{rounded}: {shorten(sources, 2)}"
    also = tuple(dict.fromkeys(other for part in parts for other in part.also))
    turn = "" if also or name in index.altered else out_of_turn(sources)
    detail = "; ".join([detail, *wrong[:3], *([turn] if turn else [])])
    found = index.explanation(name, array, (sources[0], kind, detail), ok=not (wrong or turn))
    return found._replace(parts=tuple(sources), also=also, along=axis, axes=parts[0].axes)


def stacked_parts(index: ReferenceIndex, name: str, table: Array) -> Iterator[Explanation]:
    """Yield what each index of TABLE's first axis is; nothing where one is no reference tensor."""
    shape = table.shape[1:]
    for order in permutations(range(len(shape))) if len(shape) < 4 else ():
        if len(table) > 1 and index.same_shape(tuple(shape[axis] for axis in order)):
            found = all_parts(index, name, [part.transpose(order) for part in table])
            if found:
                yield from (it._replace(axes=order) for it in found)
                return


def all_parts(index: ReferenceIndex, name: str, parts: Sequence[Array]) -> list[Explanation]:
    """Return what each of PARTS is; nothing where one of them is no reference tensor."""
    found = []
    for number, part in enumerate(parts):
        it = index.look_up(f"{name}.{number}", part, fingerprint(part))
        if it is None:
            return []
        found.append(it)
    return found


def joined_parts(index: ReferenceIndex, name: str, table: Array) -> Iterator[Explanation]:
    """Yield reference tensors that follow each other along TABLE's first axis and fill it."""
    found: list[Explanation] = []
    start = 0
    sizes = [size for size in index.first_sizes(table.shape[1:]) if size < len(table)]
    while start < len(table) and sizes:
        it = next_part(index, f"{name}.{len(found)}", table[start:], sizes)
        if it is None:
            return
        found.append(it)
        start += it.shape[0]
    yield from found


def next_part(
    index: ReferenceIndex, name: str, table: Array, sizes: Sequence[int]
) -> Explanation | None:
    """Return the reference tensor with which TABLE begins, of one of SIZES."""
    for size in sizes:
        part = table[:size]
        it = index.look_up(name, part, fingerprint(part)) if size <= len(table) else None
        if it is not None:
            return it
    return None


@dataclass
class Cut:
    """A reference tensor that candidates have parts of.

    Attributes:
        parts: the place of each candidate tensor in it.
        rows: how many rows it has as it lies, and with its last two axes exchanged.
        across: the same of those that begin or end in another reference tensor.
    """

    rows: tuple[int, ...]
    parts: dict[str, Place] = field(default_factory=dict)
    across: dict[str, Place] = field(default_factory=dict)

    def everywhere(self) -> Iterator[Place]:
        """Yield the places that candidates have."""
        yield from self.parts.values()
        yield from self.across.values()

    def nowhere(self) -> str:
        """Return which rows no candidate has, empty where all are somewhere."""
        for turned, count in enumerate(self.rows):
            own = [place.rows for place in self.everywhere() if place.turned == turned]
            if own:
                absent = np.setdiff1d(np.arange(count), np.concatenate(own))
                return ranges(absent) if len(absent) else ""
        return ""


class Cutter:
    """Finds candidates that are parts of larger reference tensors, or made of smaller ones.

    Attributes:
        free: reference tensors that nothing carries yet.
    """

    def __init__(self, index: ReferenceIndex, weights: Weights, free: Collection[str]) -> None:
        self.index, self.weights, self.free = index, weights, list(free)
        self.cuts: dict[str, Cut] = {}
        self._open: OrderedDict[tuple[str, str], Whole] = OrderedDict()

    def explain(self, pending: Collection[str]) -> dict[str, Explanation]:
        """Explain which of the candidate tensors PENDING are parts of, or made of, reference tensors."""
        found: dict[str, Explanation] = {}
        across: dict[str, list[Run]] = {}
        for name in pending if self.free else ():
            array = self.weights.read(name)
            whole = self.find_whole(name, array)
            if whole is None:
                made = self.find_parts(name, array)
                found |= {name: made} if made else {}
                across[name] = [] if made else self.find_runs(name, array)
        for source, cut in self.cuts.items():
            found |= dict(self.explanations(source, cut))
        return found | {name: self.made_across(name, it) for name, it in across.items() if it}

    def find_whole(self, name: str, array: Array) -> str | None:
        """Note in which reference tensor ARRAY lies; return it."""
        shapes = {it: self.index.sketches[it].shape for it in self.free}
        larger = [it for it in self.free if may_hold(shapes[it], array.shape)]
        for source in ranked(name, larger)[:TRIES]:
            whole = self.whole(source, CODE[array.dtype])
            place = find_place(array, whole, any_order=name in self.index.reordered)
            if place is not None:
                self.cut(source, CODE[array.dtype]).parts[name] = place
                return source
        return None

    def cut(self, source: str, code: str) -> Cut:
        """Return what is noted of reference tensor SOURCE, which candidates of dtype CODE have parts of."""
        if source not in self.cuts:
            self.cuts[source] = Cut(tuple(len(it) for it in self.whole(source, code).tables))
        return self.cuts[source]

    def find_parts(self, name: str, array: Array) -> Explanation | None:
        """Explain ARRAY by smaller reference tensors that fill it."""
        shapes = {it: self.index.sketches[it].shape for it in self.free}
        smaller = [it for it in self.free if may_hold(array.shape, shapes[it])]
        if not smaller or not self.index.arrays:
            return None
        whole = whole_of(array)
        for turned, table in enumerate(whole.tables):
            taken: dict[str, Array] = {}
            for at, source in enumerate(ranked(name, smaller)):
                if at - len(taken) >= TRIES:
                    break
                part = self.read(source, CODE[array.dtype])
                place = find_place(part, whole, any_order=name in self.index.reordered)
                if place is not None and place.turned == turned:
                    taken[source] = place.rows
            if taken and len(np.unique(np.concatenate(list(taken.values())))) == len(table):
                return self.made_of(name, array, taken)
        return None

    def find_runs(self, name: str, array: Array) -> list[Run]:
        """Note in which reference tensors ARRAY begins and ends, where it is cut at another place."""
        width = squeeze(array.shape)[1:]
        same = [it for it in self.free if self.index.sketches[it].squeezed[1:] == width]
        if len(same) < 2 or array.ndim < 2 or self.index.arrays is None:
            return []
        code = CODE[array.dtype]
        found = runs_of(array, ranked(name, same)[:TRIES], partial(self.read, code=code))
        for it in found:
            shape = self.index.sketches[it.source].squeezed
            each = math.prod(shape[1:-1])  # a place counts along the last axis but one
            place = Place(turned=False, rows=np.arange(each * it.start, each * it.stop), axes=())
            self.cut(it.source, code).across[name] = place
        return found

    def made_across(self, name: str, runs: Sequence[Run]) -> Explanation:
        """Return the explanation of candidate tensor NAME by RUNS."""
        array, sources = self.weights.read(name), tuple(it.source for it in runs)
        lost = {it: rows for it in sources if (rows := self.cuts[it].nowhere())}
        missing = [f"rows {rows} of {it} are nowhere" for it, rows in lost.items()]
        detail = "; ".join([", ".join(map(str, runs)), *missing])
        ok = not lost or name in self.index.altered
        found = self.index.explanation(name, array, (sources[0], "joined", detail), ok=ok)
        return found._replace(parts=sources)

    def made_of(self, name: str, array: Array, taken: Mapping[str, Array]) -> Explanation:
        """Return the explanation of ARRAY by the reference tensors TAKEN."""
        parts = sorted(taken, key=lambda source: int(taken[source][0]))
        turn = "" if name in self.index.altered else out_of_turn(parts)
        moved = [source for source in parts if (np.diff(taken[source]) < 0).any()]
        order = f"in another order those of {shorten(moved)}" if moved else ""
        words = [f"rows of {len(parts)} tensors, all of each: {shorten(parts)}", order, turn]
        what = (parts[0], "joined", "; ".join(it for it in words if it))
        found = self.index.explanation(name, array, what, ok=not turn)
        return found._replace(parts=tuple(parts))

    def explanations(self, source: str, cut: Cut) -> Iterator[tuple[str, Explanation]]:
        """Yield the explanation of each candidate tensor that has rows of SOURCE."""
        lost = cut.nowhere()
        missing = f"; rows {lost} of it are nowhere" if lost else ""
        for name, place in cut.parts.items():
            array = self.weights.read(name)
            where = describe_rows(place.rows, cut.rows[place.turned])
            across = "columns, as " if place.turned else ""
            kind = "cropped" if lost else "split"
            what = (source, kind, f"{across}{where} of {source}{missing}")
            ok = not lost or name in self.index.altered
            yield name, self.index.explanation(name, array, what, ok=ok)

    def whole(self, source: str, code: str) -> Whole:
        """Return reference tensor SOURCE at dtype CODE, its rows as tables; a few are kept open."""
        key = (source, code)
        if key not in self._open:
            while len(self._open) >= KEPT:
                self._open.popitem(last=False)
            it = self.index.sketches[source]
            sketched = self.index.arrays is None and not it.vector
            self._open[key] = outline(it) if sketched else whole_of(self.read(source, code))
        self._open.move_to_end(key)
        return self._open[key]

    def read(self, source: str, code: str) -> Array:
        """Return reference tensor SOURCE, a float one rounded or widened to dtype CODE."""
        it = self.index.sketches[source]
        if self.index.arrays is None:
            array = np.frombuffer(it.vector, NUMPY[it.dtype]).reshape(it.shape)
        else:
            array = self.index.arrays(source)
        floats = CODE[array.dtype] in FLOATS and code in FLOATS
        return cast(array, code) if floats and CODE[array.dtype] != code else array


def with_inconclusive(
    index: ReferenceIndex, found: Sequence[Explanation], missing: Sequence[Explanation]
) -> list[Explanation]:
    """Return all explanations, inconclusive where only arrays could decide and sketches are all there is.

    Args:
        index: of the reference.
        found: an explanation of every candidate tensor.
        missing: one of every reference tensor that none of them carries.
    """
    absent = [it.name for it in missing if not it.ok]
    unsure: set[str] = set()
    result = []
    for it in found:
        inside = (
            possible_parts(index, it, absent)
            if it.kind == "unexplained" and not index.arrays
            else []
        )
        unsure.update(inside)
        detail = f"may hold, or be of, {shorten(inside)}: sketches cannot show it, their source can"
        result.append(
            it._replace(source=None, kind="inconclusive", detail=detail) if inside else it
        )
    return result + [
        it._replace(kind="inconclusive") if it.name in unsure else it for it in missing
    ]


def possible_parts(index: ReferenceIndex, it: Explanation, absent: Collection[str]) -> list[str]:
    """Return which of the ABSENT reference tensors may be in the candidate's, or it in them."""
    shapes = {name: index.sketches[name].shape for name in ranked(it.name, absent)}
    pairs = {name: ((it.shape, shape), (shape, it.shape)) for name, shape in shapes.items()}
    return [name for name, both in pairs.items() if any(may_hold(*pair) for pair in both)]


def outline(it: Sketch) -> Whole:
    """Return the tensor sketched in IT, ready to be searched by the projections of its rows."""
    width = row_shape(it.shape)[1]
    rows = it.rows.reshape(-1, 1)
    limit = 1e-11 * it.norm / math.sqrt(max(len(rows), 1)) + 1e-300  # sums of one row in two orders
    return Whole(math.prod(it.shape) * NUMPY[it.dtype].itemsize, (rows,), (width,), project, limit)


def project(part: Array, width: int) -> Array:
    """Return the projection of each row of PART, of WIDTH elements, as sketches have them."""
    return row_sums(part.reshape(-1, width)).reshape(-1, 1)


def carried(explanations: Collection[Explanation]) -> set[str]:
    """Return the reference tensors that EXPLANATIONS account for."""
    return {name for it in explanations if it.source for name in (it.source, *it.also, *it.parts)}
