"""Make one step: solve its sizes, check its tensors, work out its targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from ....errors import BadInputError
from ...checkpoints.base import Header
from ...common.dtypes import CODE, FLOATS, NUMPY, dtype_of
from ..execution.copies import copies
from ..notation.axes import Axes, shape, show
from ..notation.definitions import Values
from ..notation.rules import Bits, Cast, Term, first_line
from ..programs.computed import Computed
from ..programs.preimages import source_header
from ..programs.programs import results
from .instances import Instance
from .plan import Bound, Step
from .sizes import Equation, equations, solve

Numbered: TypeAlias = tuple[Axes, int]  # axes of all tensors stacked, and how many there are


class Target(NamedTuple):
    """A tensor that a step makes, and the captures that its name spells."""

    name: str
    header: Header
    captures: dict[str, str]


class Made(NamedTuple):
    """A step and what it makes."""

    step: Step
    targets: list[Target]


def make_step(
    instance: Instance, headers: Mapping[str, Header], values: Values, given: Mapping[str, int]
) -> Made | list[str]:
    """Return the step of INSTANCE, or all reasons why there is none.

    VALUES are those of ``where``, GIVEN sizes recorded elsewhere, by axis or by ``TENSOR:AXIS``.
    """
    if instance.rule.renames_only:
        return _rename(instance, headers)
    if isinstance(instance.rule, Computed):
        if not instance.rule.forward:
            return _undo(instance, instance.rule, headers)
        return _compute(instance, instance.rule, headers, values)
    draft = Draft(instance, headers, values)
    draft.seed(given)
    draft.gather()
    if not draft.problems:
        draft.solve()
    return draft.problems or draft.finish()


def _rename(instance: Instance, headers: Mapping[str, Header]) -> Made:
    rule, captures = instance.rule, instance.captures
    old, new = instance.members[0][()], rule.right[0].name.fill(captures)
    source, target = Bound(rule.left[0], (old,), (), ()), Bound(rule.right[0], (new,), (), ())
    step = Step(rule, (source,), (target,), {}, {}, new, copies=True, exact=True)
    return Made(step, [Target(new, headers[old], captures)])


def _compute(
    instance: Instance, rule: Computed, headers: Mapping[str, Header], values: Values
) -> Made | list[str]:
    known = {name: size for name, size in values.known.items() if isinstance(size, int)}
    counts = instance.counts(known)
    if problems := list(instance.missing(counts)):
        return problems
    names = [tuple(members[at] for at in sorted(members)) for members in instance.members]
    if problems := [text for members in names for text in unequal(members, headers)]:
        return problems
    family = tuple(counts.values())
    try:
        made = results(rule.program, tuple(headers[name] for name, *_ in names))
    except BadInputError as error:
        return [f"{instance.fill(rule.left[0])}: {error}"]
    targets = [
        Target(
            term.name.fill(instance.captures),
            header._replace(shape=(*family, *header.shape)),
            instance.captures,
        )
        for term, header in zip(rule.right, made, strict=True)
    ]
    sources = tuple(
        Bound(term, members, (), family) for term, members in zip(rule.left, names, strict=True)
    )
    bounds = tuple(
        Bound(term, (target.name,), (), ())
        for term, target in zip(rule.right, targets, strict=True)
    )
    step = Step(rule, sources, bounds, {}, {}, targets[0].name, copies=False, exact=False)
    return Made(step, targets)


def _undo(instance: Instance, rule: Computed, headers: Mapping[str, Header]) -> Made | list[str]:
    """Return the step that seeks what a program made its target of."""
    [[old]] = [members.values() for members in instance.members]
    header = source_header(rule.program, headers[old])
    if header is None:
        return [f"{old} {headers[old]} is not what its program makes (rule: {first_line(rule)})"]
    target = Target(rule.right[0].name.fill(instance.captures), header, instance.captures)
    bounds = (Bound(rule.left[0], (old,), (), ()),), (Bound(rule.right[0], (target.name,), (), ()),)
    return Made(Step(rule, *bounds, {}, {}, old, copies=False, exact=False), [target])


def unequal(found: tuple[str, ...], headers: Mapping[str, Header]) -> Iterator[str]:
    """Yield the tensors of a family that are not like its first one."""
    for name in found[1:]:
        if headers[name] != headers[found[0]]:
            pair = f"{headers[name]}, but {found[0]} is {headers[found[0]]}"
            yield f"{name} is {pair}; tensors that become one must be alike"


class Draft:
    """A step in the making."""

    def __init__(self, instance: Instance, headers: Mapping[str, Header], values: Values) -> None:
        self.instance, self.rule = instance, instance.rule
        self.headers, self.values = headers, values
        self.sizes: dict[str, int] = {}
        self.sources: list[Bound] = []
        self.problems: list[str] = []
        self.label = instance.fill(self.rule.left[0])
        # The same in both directions, so that sizes recorded on the way there fit the way back.
        self.identity = min(self.label, instance.fill(self.rule.right[0]))

    def seed(self, given: Mapping[str, int]) -> None:
        """Take the sizes that the configuration says, then those GIVEN."""
        for name in sorted(self.rule.sizes & self.values.known.keys()):
            value = self.values.known[name]
            if isinstance(value, int) and value >= 1:
                self.sizes[name] = value
            else:
                self.problems.append(f"{self.label}: size {name} is {value} by the config")
        for name in sorted(self.rule.compound):
            size = given.get(f"{self.identity}:{name}", given.get(name))
            if size is not None and self.sizes.setdefault(name, size) != size:
                both = f"{self.sizes[name]} by the config, {size} as recorded"
                self.problems.append(f"{self.label}: size {name} is {both}")
        for name in sorted(self.rule.amounts):
            if name not in self.values.known:
                why = self.values.unknown[name]
                self.problems.append(f"{self.label}: {name} is unknown: {why}")
            elif self.values.known[name] == 0:
                self.problems.append(f"{self.label}: {name} is 0, which has no way back")

    def gather(self) -> None:
        """Take the source tensors; note what is missing or differs among them."""
        counts = self.instance.counts(self.sizes)
        self.problems += self.instance.missing(counts)
        for term, members in zip(self.rule.left, self.instance.members, strict=True):
            family = tuple(counts[name] for name in term.family(self.rule.indices))
            found = tuple(members[index] for index in sorted(members))
            self.sources.append(Bound(term, found, term.stacked_axes(self.rule.indices), family))
            self.problems += unequal(found, self.headers)
        self.problems += self._dtype_problems()

    def _dtype_problems(self) -> Iterator[str]:
        """Yield the terms whose dtype is another than the first one's, or than the rule says."""
        found = [(bound.term, bound.names[0]) for bound in self.sources if bound.names]
        for term, name in found:
            stored, first = self.headers[name].dtype, found[0][1]
            if stored != self.headers[first].dtype and not self.rule.reinterprets:
                pair = f"{self.headers[name]}, but {first} is {self.headers[first]}"
                yield f"{name} is {pair}; tensors that become one must have one dtype"
            for change in term.changes:
                if isinstance(change, Cast | Bits) and CODE[dtype_of(change.dtype)] != stored:
                    yield f"{name} is {stored}, expected {change.dtype}"
            for change in self.rule.affine:
                if stored not in FLOATS:
                    yield f"{name} is {stored}; `{change}` needs floating-point numbers"

    def solve(self) -> None:
        """Find the size of every axis from the shapes."""
        found: list[Equation] = []
        for term, members, axes, family in self.sources:
            if term.axes is None:
                continue
            header = self.headers[members[0]]
            where = f"{members[0]} {header}"
            if len(header.shape) != len(term.axes):
                self.problems.append(f"{where} has not the axes {show(term.axes)}")
                continue
            found += equations(axes, (*family, *self._shape(header)), where)
        self.problems += solve(found, self.sizes)
        if not self.problems:
            self.problems += self._unsolved()

    def _shape(self, header: Header) -> tuple[int, ...]:
        """Return the shape of a source as its axes count it."""
        return in_bytes(header) if self.rule.reinterprets else header.shape

    def _unsolved(self) -> Iterator[str]:
        for name in sorted(self.rule.atoms - self.sizes.keys()):
            if not name.isdigit():
                why = self.values.unknown.get(name, f"add `where {name} = ...` to the rule")
                yield f"{self.label}: size {name} is unknown: {why}"

    def finish(self) -> Made | list[str]:
        """Return the step and its targets, or why their bytes do not fit."""
        if problems := list(self._broken()):
            return problems
        bounds, targets = [], []
        for term in self.rule.right:
            made = list(self._targets(term))
            family = tuple(self.sizes[name] for name in term.family(self.rule.indices))
            axes = term.stacked_axes(self.rule.indices)
            bounds.append(Bound(term, tuple(target.name for target in made), axes, family))
            targets += made
        copied, exact = self._is_copy(bounds, targets), self._is_exact(targets)
        amounts = {name: self.values.known[name] for name in self.rule.amounts}
        sources = tuple(self.sources)
        step = Step(
            self.rule, sources, tuple(bounds), self.sizes, amounts, self.identity, copied, exact
        )
        return Made(step, targets)

    def _broken(self) -> Iterator[str]:
        """Yield the targets whose bytes make no whole number of elements."""
        for term in self.rule.right if self.rule.reinterprets else ():
            sizes, name = self._counted_shape(term), self.instance.fill(term)
            dtype = NUMPY[_cast("", term)]
            if not sizes:
                yield f"{self.label} has no axis to count bytes in (rule: {first_line(self.rule)})"
            elif sizes[-1] % dtype.itemsize:
                yield f"{name} would have rows of {sizes[-1]} bytes, no whole number of {dtype}"

    def _counted_shape(self, term: Term) -> tuple[int, ...]:
        """Return the shape of a target as its axes count it."""
        if term.axes is not None:
            return shape(term.axes, self.sizes)
        return self._shape(self.headers[self.sources[0].names[0]])

    def _targets(self, term: Term) -> Iterator[Target]:
        header = self._header(term)
        family = term.family(self.rule.indices)
        for index in product(*(range(self.sizes[name]) for name in family)):
            captures = self.instance.captures | dict(zip(family, map(str, index), strict=True))
            yield Target(term.name.fill(captures), header, captures)

    def _header(self, term: Term) -> Header:
        """Return the header of the targets of TERM."""
        stored = self.headers[self.sources[0].names[0]].dtype
        code, sizes = _cast(stored, term), self._counted_shape(term)
        if self.rule.reinterprets:
            sizes = (*sizes[:-1], sizes[-1] // NUMPY[code].itemsize)
        return Header(code, sizes)

    def _is_copy(self, bounds: list[Bound], targets: list[Target]) -> bool:
        if self.rule.keeps_layout:
            return True
        source = self.headers[self.sources[0].names[0]]
        cast = any(target.header.dtype != source.dtype for target in targets)
        if self.rule.affine or (cast and not self.rule.reinterprets):
            return False
        if self.rule.left[0].axes is None:
            return True
        sizes = tuple((n, self.sizes[n]) for n in sorted(self.rule.atoms & self.sizes.keys()))
        return _copied(_numbered(self.sources), _numbered(bounds), sizes)

    def _is_exact(self, targets: list[Target]) -> bool:
        if self.rule.reinterprets:
            return True
        stored = NUMPY[self.headers[self.sources[0].names[0]].dtype]
        casts = all(np.can_cast(stored, NUMPY[target.header.dtype], "safe") for target in targets)
        return casts and not self.rule.affine


def _cast(stored: str, term: Term) -> str:
    """Return the dtype code in which TERM is stored, if its source is STORED so."""
    casts = [change.dtype for change in term.changes if isinstance(change, Cast | Bits)]
    return CODE[dtype_of(casts[-1])] if casts else stored


def in_bytes(header: Header) -> tuple[int, ...]:
    """Return the shape of a tensor of HEADER as one of bytes, which its last axis counts.

    >>> in_bytes(Header("BF16", (2, 3)))
    (2, 6)
    """
    *outer, last = header.shape or (1,)
    return (*outer, last * NUMPY[header.dtype].itemsize) if header.shape else ()


@lru_cache(maxsize=4096)
def _copied(
    sources: tuple[Numbered, ...], targets: tuple[Numbered, ...], sizes: tuple[tuple[str, int], ...]
) -> bool:
    """Return whether TARGETS are whole ranges of SOURCES; it is the same for each layer."""
    here, there = (
        [(axes, [str(at) for at in range(count)]) for axes, count in side]
        for side in (sources, targets)
    )
    return bool(copies(here, there, dict(sizes)))


def _numbered(bounds: list[Bound]) -> tuple[Numbered, ...]:
    return tuple((bound.axes, len(bound.names)) for bound in bounds)
