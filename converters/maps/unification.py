"""Unify names, and axes, of two rules that meet in the middle of a composition.

The captures and atoms of both must have different names; a result says what each stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ...errors import UnsupportedError
from .notation.axes import Atom, Axes, Axis, Product, Sum, substitute
from .notation.names import Capture, Name, match

Segment: TypeAlias = tuple[str | Capture, ...]  # what stands between two dots
Captured: TypeAlias = dict[str, Name]
Laid: TypeAlias = dict[str, Axis]


def fill_in(name: Name, captured: Mapping[str, Name]) -> Name:
    """Return NAME with its captures replaced, and those within them.

    >>> fill_in(Name(("a.", Capture("x"))), {"x": Name(("b_", Capture("y")))})
    Name(parts=('a.b_', Capture(name='y', deep=False)))
    """
    parts: list[str | Capture] = []
    for part in name.parts:
        inner = captured.get(part.name) if isinstance(part, Capture) else None
        for piece in fill_in(inner, captured).parts if inner else (part,):
            if parts and isinstance(piece, str) and isinstance(parts[-1], str):
                parts[-1] += piece
            else:
                parts.append(piece)
    return Name(tuple(parts))


def segments(name: Name) -> list[Segment]:
    """Return what stands between the dots of NAME."""
    found: list[list[str | Capture]] = [[]]
    for part in name.parts:
        if isinstance(part, Capture):
            found[-1].append(part)
            continue
        first, *others = part.split(".")
        found[-1] += [first] if first else []
        found += [[text] if text else [] for text in others]
    return [tuple(segment) for segment in found]


def joined(parts: Iterable[Segment]) -> Name:
    """Return the name made of segments; the inverse of ``segments``."""
    flat: list[str | Capture] = []
    for at, segment in enumerate(parts):
        flat += [".", *segment] if at else [*segment]
    return fill_in(Name(tuple(flat)), {})


def unify_names(one: Name, other: Name, captured: Captured) -> bool:
    """Return whether a tensor can have both names; add to CAPTURED what their captures stand for.

    Raises:
        UnsupportedError: they can, but no one name says when.

    >>> captured: Captured = {}
    >>> one = Name(("layers.", Capture("n"), ".", Capture("p")))
    >>> unify_names(one, Name((Capture("m", deep=True), ".weight")), captured)
    True
    >>> {capture: str(name) for capture, name in captured.items()}
    {'p': 'weight', 'm': 'layers.{n}'}
    """
    left, right = (segments(fill_in(name, captured)) for name in (one, other))
    at, there = _deep(left), _deep(right)
    if at is None and there is None:
        return len(left) == len(right) and _unify_all(left, right, captured)
    if there is None or (at is not None and at < there):
        left, right, at, there = right, left, there, at
    assert there is not None  # noqa: S101  (one of the two is deep)
    before, after = there, len(right) - there - 1
    if at is None and len(left) < len(right):
        return False
    crossing = at is not None and len(left) - at - 1 < after
    after = min(after, len(left) - at - 1) if at is not None else after
    ends = [*right[:before], *right[len(right) - after :]]
    if not _unify_all([*left[:before], *left[len(left) - after :]], ends, captured):
        return False
    if crossing:
        raise UnsupportedError(f"{one} and {other} overlap, and no one name says where")
    [deep] = right[there]
    captured[str(deep)[1:-3]] = joined(left[before : len(left) - after])
    return True


def _deep(parts: Sequence[Segment]) -> int | None:
    for at, segment in enumerate(parts):
        if any(isinstance(part, Capture) and part.deep for part in segment):
            if len(segment) > 1:
                raise UnsupportedError(f"{joined(parts)}: a part of a segment may not be deep here")
            return at
    return None


def _unify_all(one: Sequence[Segment], other: Sequence[Segment], captured: Captured) -> bool:
    undecided = None
    for a, b in zip(one, other, strict=True):
        try:
            if not _unify(a, b, captured):
                return False
        except UnsupportedError as error:  # another segment may still rule it out
            undecided = error
    if undecided:
        raise undecided
    return True


def _unify(one: Segment, other: Segment, captured: Captured) -> bool:
    one, other = (tuple(fill_in(Name(segment), captured).parts) for segment in (one, other))
    if one == other:
        return True
    for this, that in ((other, one), (one, other)):
        if len(this) == 1 and isinstance(this[0], Capture):
            captured[this[0].name] = Name(that)
            return True
        if all(isinstance(part, str) for part in that):
            found = match(Name(this), "".join(map(str, that)))
            captured.update({key: Name((text,)) for key, text in (found or {}).items()})
            return found is not None
    if [isinstance(part, Capture) or part for part in one] != [
        isinstance(part, Capture) or part for part in other
    ]:
        raise UnsupportedError(f"{Name(one)} and {Name(other)} overlap, and no one name says where")
    captured.update(
        {b.name: Name((a,)) for a, b in zip(one, other, strict=True) if isinstance(b, Capture)}
    )
    return True


def unify_axes(one: Axes, other: Axes, laid: Laid) -> None:
    """Add to LAID what atoms stand for, so that ONE and OTHER are the same axes.

    Raises:
        UnsupportedError: the notation cannot write the common refinement of the two.
    """
    if len(one) != len(other):
        raise UnsupportedError(f"{len(one)} axes meet {len(other)}")
    for a, b in zip(one, other, strict=True):
        _unify_axis(resolve(a, laid), resolve(b, laid), laid)


def resolve(axis: Axis, laid: Mapping[str, Axis]) -> Axis:
    """Return AXIS with its atoms replaced, and those within them."""
    while (found := substitute((axis,), laid)[0]) != axis:
        axis = found
    return axis


def _unify_axis(one: Axis, other: Axis, laid: Laid) -> None:
    if one == other:
        return
    for this, that in ((other, one), (one, other)):
        if isinstance(this, Atom) and not this.name.isdigit():
            laid[this.name] = that
            return
    match (one, other):
        case (Product(a), Product(b)) | (Sum(a), Sum(b)) if len(a) == len(b):
            unify_axes(a, b, laid)
        case _:
            raise UnsupportedError(f"axes {one} and {other} are cut in different places")
