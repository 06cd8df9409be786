"""The rules of a map, each one line of text that is read in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from .axes import Atom, Axes, choices, names, show
from .expressions import Definition, Number, Words
from .names import Name

POLICIES: Final = ("recomputed", "original")
SHOWN: Final = 400  # characters from either end of a rule that a message quotes
RESERVED: Final = frozenset({"as", "else", "same", "weighbridge", "where", *POLICIES})


@dataclass(frozen=True)
class Cast:
    """The tensor is stored as DTYPE, a numpy or ml_dtypes name."""

    dtype: str

    def __str__(self) -> str:
        return f"as {self.dtype}"


@dataclass(frozen=True)
class Affine:
    """The tensor is stored with AMOUNT, a number or a name from ``where``, added or multiplied."""

    symbol: str
    amount: Number | str

    def __str__(self) -> str:
        return f"{self.symbol} {self.amount}"

    def value(self, amounts: Mapping[str, Number]) -> Number:
        """Return the number itself, from AMOUNTS where it is a name."""
        return amounts[self.amount] if isinstance(self.amount, str) else self.amount


@dataclass(frozen=True)
class Bits:
    """The tensor is stored as DTYPE with the bits that it has; its last axis counts bytes."""

    dtype: str

    def __str__(self) -> str:
        return f"bits {self.dtype}"


Change: TypeAlias = Cast | Affine | Bits


@dataclass(frozen=True)
class Term:
    """One tensor of a rule, or one per index: its name, its axes, and how its values differ.

    Attributes:
        name: the name, with captures.
        axes: the layout; ``None`` where the rule leaves it alone.
        changes: what the stored values differ by, applied in order.
    """

    name: Name
    axes: Axes | None = None
    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{self.tail()}"

    def tail(self) -> str:
        """Print what follows the name."""
        axes = "" if self.axes is None else f" {show(self.axes)}"
        return axes + "".join(f" {change}" for change in self.changes)

    def stacked_axes(self, indices: frozenset[str]) -> Axes:
        """Return the axes of all tensors of the term stacked, captured INDICES first."""
        family = tuple(Atom(name) for name in self.family(indices))
        return family + (self.axes or ())

    def family(self, indices: frozenset[str]) -> tuple[str, ...]:
        """Return those captures of the name that are axes of the rule."""
        if not indices:
            return ()
        return tuple(capture.name for capture in self.name.captures if capture.name in indices)


@dataclass(frozen=True)
class Pairing:
    """``left <-> right``: the tensors on both sides hold the same pieces.

    Attributes:
        left: terms of the left side.
        right: terms of the right side.
        where: names for sizes, from the configuration.
        marker: ``?`` for a rule that may match nothing, ``else`` for one that takes the names that
            no other rule matches, empty for one that must match.
    """

    left: tuple[Term, ...]
    right: tuple[Term, ...]
    where: tuple[Definition, ...] = ()
    marker: str = ""

    def __str__(self) -> str:
        marker = f"{self.marker} " if self.marker else ""
        left = ", ".join(map(str, self.left))
        return f"{marker}{left} <-> {self._right()}{where_text(self.where)}"

    def _right(self) -> str:
        if len(self.left) == len(self.right) == 1 and self.left[0].name == self.right[0].name:
            if self.left == self.right or self.right[0].axes is None:
                return f"same{self.right[0].tail() if self.right[0].axes is None else ''}"
            return self.right[0].tail().strip()
        return ", ".join(map(str, self.right))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The terms of both sides."""
        return (*self.left, *self.right)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes of value of all terms."""
        return tuple(change for term in self.terms for change in term.changes)

    @cached_property
    def affine(self) -> tuple[Affine, ...]:
        """Those of the changes that add or multiply."""
        return tuple(change for change in self.changes if isinstance(change, Affine))

    @cached_property
    def indices(self) -> frozenset[str]:
        """The captures that are axes: ``{e}`` where ``e`` stands in brackets."""
        captures = {c.name for term in self.terms for c in term.name.captures}
        return frozenset(captures & self.atoms)

    @cached_property
    def atoms(self) -> frozenset[str]:
        """The names of all axes."""
        return frozenset(name for term in self.terms for name in names(term.axes or ()))

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The names that stand for a size: axes, and captures, whose size is a count."""
        return self.atoms.union(
            capture.name for term in self.terms for capture in term.name.captures
        )

    @cached_property
    def compound(self) -> frozenset[str]:
        """The axes within products and sums, whose sizes a shape alone may not tell."""
        axes = (axis for term in self.terms for axis in term.axes or ())
        found = names(tuple(axis for axis in axes if not isinstance(axis, Atom)))
        return frozenset(name for name in found if not name.isdigit())

    @property
    def defined(self) -> frozenset[str]:
        """The names that ``where`` may define."""
        return self.sizes | self.amounts

    @cached_property
    def amounts(self) -> frozenset[str]:
        """The names used in changes of value."""
        amounts = (change.amount for change in self.affine)
        return frozenset(amount for amount in amounts if isinstance(amount, str))

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The captures that tell one instance of the rule from another, sorted."""
        captures = (capture.name for capture in self.left[0].name.captures)
        return tuple(sorted(name for name in captures if name not in self.indices))

    @cached_property
    def renames_only(self) -> bool:
        """Whether the tensors stay as they are, byte for byte and shape for shape."""
        return not self.changes and all(term.axes is None for term in self.terms)

    @cached_property
    def keeps_layout(self) -> bool:
        """Whether each tensor stays as it is, its axes named or not."""
        alike = len(self.terms) == 2 and self.left[0].axes == self.right[0].axes
        return alike and not self.indices and not self.changes

    @cached_property
    def reinterprets(self) -> bool:
        """Whether the axes are of bytes: the bits stay, the dtypes may differ."""
        return any(isinstance(change, Bits) for change in self.changes)

    def inverse(self) -> Pairing:
        """Return the rule with its sides swapped."""
        return replace(self, left=self.right, right=self.left)

    def flaw(self, defined: frozenset[str] = frozenset()) -> str | None:
        """Say why this rule cannot be followed both ways; ``None`` if it can.

        DEFINED are the names that the map defines for all its rules.
        """
        return next(self._flaws(defined), None)

    def _flaws(self, defined: frozenset[str]) -> Iterator[str]:
        yield from (flaw for term in self.terms if (flaw := term.name.flaw()))
        yield from self._layout_flaws()
        yield from _capture_flaws(self)
        if any(term.axes is not None for term in self.terms):
            yield from _piece_flaws(self)
        yield from _definition_flaws(self, defined)
        yield from _change_flaws(self)

    def _layout_flaws(self) -> Iterator[str]:
        bare = [term for term in self.terms if term.axes is None]
        if bare and (len(bare) < len(self.terms) or len(self.terms) > 2):
            yield f"{bare[0].name} needs axes in brackets, because others of its rule have some"
        yield from repeated(self)


@dataclass(frozen=True)
class Drop:
    """``name -> policy``: a tensor of one side that the other does not have.

    Attributes:
        name: the name, with captures.
        policy: ``recomputed`` if the model computes it, ``original`` if the way back needs the
            original checkpoint.
        side: ``left`` or ``right``, the side that has it.
    """

    name: Name
    policy: str
    side: str = "left"

    def __str__(self) -> str:
        if self.side == "left":
            return f"{self.name} -> {self.policy}"
        return f"{self.policy} <- {self.name}"

    def inverse(self) -> Drop:
        """Return the rule with its sides swapped."""
        return replace(self, side="right" if self.side == "left" else "left")

    def flaw(self, defined: frozenset[str] = frozenset()) -> str | None:  # noqa: ARG002
        """Say why the name cannot be read; ``None`` if it can."""
        return self.name.flaw()


@dataclass(frozen=True)
class Tie:
    """``alias == original``: on either side the alias may be absent, and where present it is equal."""

    alias: Name
    original: Name

    def __str__(self) -> str:
        return f"{self.alias} == {self.original}"

    def inverse(self) -> Tie:
        """Return the rule itself, which holds on either side."""
        return self

    def flaw(self, defined: frozenset[str] = frozenset()) -> str | None:  # noqa: ARG002
        """Say why the original cannot be found from the alias; ``None`` if it can."""
        if flaw := self.alias.flaw() or self.original.flaw():
            return flaw
        lacking = set(self.original.captures) - set(self.alias.captures)
        return f"{self.alias} does not capture {_listed(map(str, lacking))}" if lacking else None


Rule: TypeAlias = Pairing | Drop | Tie


def first_line(rule: Rule) -> str:
    """Return RULE without its definitions and its program, shortened where it is very long."""
    text = str(rule).partition("\n")[0]
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} ... {text[-SHOWN:]}"


def where_text(definitions: tuple[Definition, ...]) -> str:
    """Print DEFINITIONS as the line under a rule."""
    return f"\n    where {', '.join(map(str, definitions))}" if definitions else ""


def _change_flaws(rule: Pairing) -> Iterator[str]:
    for term in rule.terms:
        if Affine("*", 0) in term.changes:
            yield "`* 0` has no way back"
        if rule.reinterprets and [type(change) for change in term.changes] != [Bits]:
            yield f"{term.name}: where one tensor has `bits`, each has it, and no other change"
        if rule.reinterprets and term.axes == ():
            yield f"{term.name}: `bits` needs an axis to count bytes in"


def _definition_flaws(rule: Pairing, defined: frozenset[str]) -> Iterator[str]:
    local = {name for definition in rule.where for name in definition.names}
    for name in sorted(local - rule.defined):
        yield f"{name} is defined, but is no axis and no capture of this rule"
    words = {n for d in rule.where if isinstance(d.value, Words) for n in d.names}
    for name in sorted(words & (rule.atoms | rule.amounts)):
        yield f"{name} stands for words, so it cannot be an axis or a number"
    for name in sorted(rule.amounts - local - defined):
        yield f"{name} is not defined; add: where {name} = ..."


def repeated(rule: Pairing) -> Iterator[str]:
    """Yield the names that stand twice on one side of RULE."""
    for side in (rule.left, rule.right):
        for name, count in Counter(term.name for term in side).items():
            if count > 1:
                yield f"{name} stands twice on one side"


def _capture_flaws(rule: Pairing) -> Iterator[str]:
    for capture in (c for term in rule.terms for c in term.name.captures):
        if capture.deep and capture.name in rule.indices:
            yield f"{capture} is of any depth and cannot be an axis"
    expected = _instance_captures(rule, rule.left[0])
    for term in (*rule.left[1:], *rule.right):
        for name in sorted(expected ^ _instance_captures(rule, term)):
            yield f"{{{name}}} is not in every name of the rule, and is no axis"


def _instance_captures(rule: Pairing, term: Term) -> set[str]:
    return {
        str(capture)[1:-1] for capture in term.name.captures if capture.name not in rule.indices
    }


def _piece_flaws(rule: Pairing) -> Iterator[str]:
    sides = [
        [piece for term in side for piece in choices(term.stacked_axes(rule.indices))]
        for side in (rule.left, rule.right)
    ]
    for piece in (piece for side in sides for piece in side):
        if len(set(piece)) < len(piece):
            yield f"an axis stands twice in [{' '.join(piece)}]"
    left, right = ({tuple(sorted(piece)) for piece in side} for side in sides)
    if len(left) < len(sides[0]) or len(right) < len(sides[1]):
        yield "two parts have the same axes; name the segments apart, such as (q + k)"
    if left != right:
        yield f"the sides differ: left has {_pieces(left - right)}, right {_pieces(right - left)}"


def _pieces(keys: set[tuple[str, ...]]) -> str:
    return _listed(f"[{' '.join(key)}]" for key in keys) if keys else "nothing more"


def _listed(items: Iterator[str] | map[str]) -> str:
    return ", ".join(sorted(items))
