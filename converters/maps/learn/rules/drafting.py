"""The rule of one component, with the names that its tensors have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple

from ....checkpoints.base import Header
from ....common.dtypes import NUMPY
from ...binding.sizes import equations, solve
from ...notation.axes import Atom, Axes, substitute
from ...notation.expressions import Definition, Literal
from ...notation.rules import Bits, Cast, Change, Pairing, Term
from ..trace.components import Component
from ..trace.forms import Form
from ..trace.pieces import Unfit
from .families import Part, Tensor, parts, tensors
from .layouts import Layout, layout

FAMILY: Final = "e"  # the capture that is an index
LETTERS: Final = "abcdfghijklmnopqrstuvwxyz"


class Rows(NamedTuple):
    """The tensors of a rule and the pieces between them.

    Attributes:
        sources: on the left.
        targets: on the right.
        parts: what lies where.
        bytes: whether pieces count bytes.
    """

    sources: list[Tensor]
    targets: list[Tensor]
    parts: list[Part]
    bytes: bool


def pairing(
    component: Component, headers: Mapping[str, Header], layout_of: Mapping[str, Header]
) -> Pairing:
    """Return the two-way rule of COMPONENT: HEADERS of its sources, LAYOUT_OF its targets.

    Raises:
        Unfit: there is none.
    """
    simple = _renaming(component, headers)
    if simple is not None:
        return simple
    rows = _rows(component, headers, layout_of)
    found = layout(rows.sources, rows.targets, rows.parts)
    names = atom_names(rows, found)
    by = {atom: Atom(name) for atom, name in names.items()}
    left = tuple(
        Term(tensor.name, _axes(tensor, axes, by), _stored(tensor, rows))
        for tensor, axes in zip(rows.sources, found.left, strict=True)
    )
    right = tuple(
        Term(tensor.name, _axes(tensor, axes, by), _changes(rows, at))
        for at, (tensor, axes) in enumerate(zip(rows.targets, found.right, strict=True))
    )
    sizes = {names[atom]: size for atom, size in found.sizes.items()}
    rule = Pairing(left, right, _where(left, right, rows, sizes))
    if flaw := rule.flaw():
        raise Unfit(flaw)
    return rule


def _renaming(component: Component, headers: Mapping[str, Header]) -> Pairing | None:
    """Return the rule of a tensor whose axes stay as they are, ``None`` for any other."""
    if len(component.sources) != 1 or len(component.targets) != 1:
        return None
    [form], [old], [new] = component.forms, component.sources, component.targets
    if form is None or form.width or form.shape != headers[old].shape:
        return None
    [piece, *more] = form.pieces
    if more or piece.start or any(here != there for _, here, there in piece.factors):
        return None
    if piece.size != prod(form.shape):
        return None
    left, right = (tensors([name], {name: headers[old]}, FAMILY)[0].name for name in (old, new))
    casts = any(isinstance(change, Cast) for change in piece.changes)
    stored = (Cast(NUMPY[headers[old].dtype].name),) if casts else ()
    return Pairing((Term(left, None, stored),), (Term(right, None, piece.changes),))


def _rows(
    component: Component, headers: Mapping[str, Header], layout_of: Mapping[str, Header]
) -> Rows:
    forms = {
        name: _form(form) for name, form in zip(component.targets, component.forms, strict=True)
    }
    if not component.sources:
        raise Unfit("it is made of no tensor")
    counts_bytes = any(form.width for form in forms.values())
    if counts_bytes:
        width = {name: NUMPY[layout_of[name].dtype].itemsize for name in forms}
        forms = {n: form if form.width else form.in_bytes(width[n]) for n, form in forms.items()}
        headers = {n: _in_bytes(headers[n]) for n in component.sources}
        layout_of = {n: _in_bytes(layout_of[n]) for n in component.targets}
    sources = tensors(component.sources, headers, FAMILY)
    targets = tensors(component.targets, layout_of, FAMILY)
    found = parts(sources, targets, {name: form.pieces for name, form in forms.items()})
    return Rows(sources, targets, found, counts_bytes)


def _form(form: Form | None) -> Form:
    if form is None:
        raise Unfit("its values are computed")
    return form


def _in_bytes(header: Header) -> Header:
    """Return HEADER with a last axis that counts bytes; the dtype stays as it is stored."""
    if not header.shape:
        raise Unfit("a single number has no axis that could count bytes")
    *outer, last = header.shape
    return Header(header.dtype, (*outer, last * NUMPY[header.dtype].itemsize))


def _axes(tensor: Tensor, axes: Axes, by: Mapping[str, Atom]) -> Axes:
    """Return the axes of one tensor: the index of a family is in its name."""
    return substitute(axes[1:] if tensor.family else axes, by)


def _stored(tensor: Tensor, rows: Rows) -> tuple[Change, ...]:
    """Return what is said of how a source is stored."""
    dtype = NUMPY[tensor.header.dtype].name
    if rows.bytes:
        return (Bits(dtype),)
    changes = (change for part in rows.parts for change in part.piece.changes)
    return (Cast(dtype),) if any(isinstance(change, Cast) for change in changes) else ()


def _changes(rows: Rows, target: int) -> tuple[Change, ...]:
    """Return what changes in value on the way to a target: the same everywhere in it."""
    if rows.bytes:
        return (Bits(NUMPY[rows.targets[target].header.dtype].name),)
    found = {part.piece.changes for part in rows.parts if part.target == target}
    if len(found) > 1:
        raise Unfit("values change in a part of a tensor")
    return found.pop()


def atom_names(rows: Rows, found: Layout) -> dict[str, str]:
    """Return a name for every atom: the index of a family, a word of a part of a sum, or a letter."""
    names: dict[str, str] = {}
    for tensor, axes in [
        *zip(rows.sources, found.left, strict=True),
        *zip(rows.targets, found.right, strict=True),
    ]:
        if tensor.family and isinstance(axes[0], Atom):
            names[axes[0].name] = FAMILY
        elif tensor.family:
            raise Unfit("an index is no axis of its own")
    if len(names) > 1:
        raise Unfit("two families have different indices")
    for atom, members in found.segments.items():
        words = _words(rows, members)
        if atom not in names and words:
            names[atom] = _fresh(words, names.values())
    for atom in found.sizes:
        names.setdefault(atom, _fresh(LETTERS, names.values()))
    return names


def _fresh(words: Iterable[str], taken: Iterable[str]) -> str:
    used = set(taken) | {FAMILY}
    words = list(words)
    numbered = (f"{words[-1]}{number}" for number in range(2, 10**6))
    return next(word for pool in (words, numbered) for word in pool if word not in used)


def _words(rows: Rows, members: Sequence[int]) -> list[str]:
    """Return the word that tells the tensor of a part from its neighbours, if it is one tensor's."""
    for tensors_, side in ((rows.targets, "target"), (rows.sources, "source")):
        owners = {getattr(rows.parts[number], side) for number in members}
        if len(owners) == 1 and len(tensors_) > 1:
            own, *others = (
                str(tensors_[at].name).split(".") for at in _first(owners.pop(), tensors_)
            )
            word = next((w for w in own if all(w not in other for other in others)), "")
            short = word.split("_")[0].lower()
            return [short] if short.isidentifier() and not short.startswith("{") else []
    return []


def _first(at: int, tensors_: Sequence[Tensor]) -> Iterator[int]:
    yield at
    yield from (other for other in range(len(tensors_)) if other != at)


def _where(
    left: tuple[Term, ...], right: tuple[Term, ...], rows: Rows, sizes: Mapping[str, int]
) -> tuple[Definition, ...]:
    """Return the sizes that shapes alone do not tell, on either side."""
    needed: dict[str, None] = {}
    for terms, tensors_ in ((left, rows.sources), (right, rows.targets)):
        known: dict[str, int] = {}
        found = []
        for term, tensor in zip(terms, tensors_, strict=True):
            axes = term.stacked_axes(frozenset({FAMILY}) if tensor.family else frozenset())
            found += equations(axes, tensor.shape, str(term.name))
        solve(found, known)
        needed |= dict.fromkeys(name for name in sizes if name not in known)
    if any(tensor.family for tensor in (*rows.sources, *rows.targets)):
        needed = {FAMILY: None, **needed}
    return tuple(Definition((name,), Literal(sizes[name])) for name in needed)
