"""Find the rules that speak of a tensor, by its name.

A checkpoint has tens of thousands of names, but they differ in their numbers only: without them a
hundred are left. What a rule makes of such a *skeleton* is worked out once; a name then costs a
look-up of its numbers, whatever the number of rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from ..notation.definitions import Values
from ..notation.names import Capture, Name, regex
from ..notation.rules import Pairing, Rule, Tie

DIGITS: Final = re.compile(r"([0-9]+)")
HOLE: Final = "\0"  # stands in a skeleton where the name has a number; a name with it has no match
Numbers: TypeAlias = Sequence[str]
Expected: TypeAlias = int | tuple[str, ...]  # so many indices, or words
Allowed: TypeAlias = Mapping[int, Mapping[str, Expected]]
NOTHING: Final[Allowed] = {}


def is_expected(value: str, expected: Expected) -> bool:
    """Return whether a capture may stand for VALUE: an index below a count, or one of the words.

    >>> is_expected("2", 2), is_expected("bias", ("weight", "bias"))
    (False, True)
    """
    if isinstance(expected, int):
        return value.isdigit() and int(value) < expected
    return value in expected


def allows(expected: Mapping[str, Expected], captures: Mapping[str, str]) -> bool:
    """Return whether all of CAPTURES of which something is EXPECTED may stand for that."""
    return all(is_expected(text, expected[n]) for n, text in captures.items() if n in expected)


def expectations(found: Values) -> dict[str, Expected]:
    """Return what the definitions of a rule, FOUND by the configuration, say of its captures."""
    counts = {name: value for name, value in found.known.items() if isinstance(value, int)}
    return {**counts, **found.words}


class Match(NamedTuple):
    """Rule number RULE speaks of a name in its term number TERM.

    Attributes:
        rule: index of the rule.
        term: index of the term on its side; 0 for a drop or a tie.
        captures: what its captures stand for.
    """

    rule: int
    term: int
    captures: dict[str, str]


class Entry(NamedTuple):
    """One name of a rule, its captures in order, and where it stands."""

    name: Name
    captures: tuple[str, ...]
    indices: Set[str]
    rule: int
    term: int


class Fit(NamedTuple):
    """How a family of entries fits a skeleton.

    Attributes:
        key: gives those of a name's numbers that are literal text of the entries.
        entries: the entries by those numbers.
        captured: what each capture stands for: a number of the name, or what its numbers give.
        indices: which numbers of a name are indices, so that none may start with a zero.
    """

    key: Callable[[Numbers], object]
    entries: dict[object, list[Entry]]
    captured: Sequence[int | Callable[[Numbers], str]]
    indices: tuple[int, ...]


class Matcher:
    """The names of one side of a map.

    >>> from weighbridge.converters.maps.binding.weightmap import WeightMap
    >>> matcher = Matcher(WeightMap.parse("h.{n}.w <-> layers.{n}.weight").rules, "right")
    >>> matcher("layers.3.weight"), matcher("h.3.w")
    ([Match(rule=0, term=0, captures={'n': '3'})], [])
    """

    def __init__(self, rules: Sequence[Rule], side: str, expected: Allowed = NOTHING) -> None:
        """Read the names of RULES on one SIDE; EXPECTED is what captures may stand for, by rule."""
        entries = [
            (
                isinstance(rule, Pairing) and rule.marker == "else",
                _entry(name, indices, number, term),
            )
            for number, rule in enumerate(rules)
            for term, (name, indices) in enumerate(_names(rule, side))
        ]
        self.entries = Index([entry for fallback, entry in entries if not fallback], expected)
        self.fallbacks = Index([entry for fallback, entry in entries if fallback], expected)
        self.has_fallbacks = any(fallback for fallback, _ in entries)

    def __call__(self, name: str) -> list[Match]:
        """Return every match of NAME; those of ``else`` rules only where there is no other."""
        if HOLE in name:
            return []
        parts = DIGITS.split(name)
        skeleton, numbers = HOLE.join(parts[::2]), parts[1::2]
        found = self.entries.matches(name, skeleton, numbers)
        if found or not self.has_fallbacks:
            return found
        return self.fallbacks.matches(name, skeleton, numbers)


class Index:
    """Entries by what they look like without their numbers."""

    def __init__(self, entries: Sequence[Entry], expected: Allowed) -> None:
        self.expected = expected
        self.families: dict[str, list[Entry]] = {}
        self.others: list[tuple[str, Entry]] = []
        for entry in entries:
            if _is_regular(entry.name):
                self.families.setdefault("".join(_expressions(entry)), []).append(entry)
            else:
                self.others.append((entry.name.literal, entry))
        self.fits: dict[str, tuple[list[Fit], list[Fit]]] = {}

    def matches(self, name: str, skeleton: str, numbers: Numbers) -> list[Match]:
        """Return the matches of NAME, which is SKELETON with NUMBERS, in the order of the rules."""
        if skeleton not in self.fits:
            self.fits[skeleton] = self.fitting(skeleton)
        allowed, others = self.fits[skeleton]
        found = _matches(allowed, numbers)
        if others and not found:
            found = _matches(others, numbers)
        if self.others:
            found += self.irregular(name)
        if len(found) > 1:
            found.sort(key=lambda match: match[:2])
        return found

    def fitting(self, skeleton: str) -> tuple[list[Fit], list[Fit]]:
        """Return how the families that fit SKELETON fit it: those that allow it, and the others."""
        fits: tuple[list[Fit], list[Fit]] = ([], [])
        for pattern, entries in self.families.items():
            found = re.fullmatch(pattern, skeleton)
            if found is None:
                continue
            sorted_: tuple[list[Entry], list[Entry]] = ([], [])
            for entry in entries:
                sorted_[not self.allows(entry, found)].append(entry)
            for some, fitted in zip(sorted_, fits, strict=True):
                fitted.extend([_fit(some, found)] if some else [])
        return fits

    def allows(self, entry: Entry, found: re.Match[str]) -> bool:
        """Return whether a capture of ENTRY that is the same in all names FOUND may be that."""
        words = self.expected.get(entry.rule, {})
        texts = zip(entry.name.parts, found.groups(), strict=True)
        captured = ((part.name, text) for part, text in texts if isinstance(part, Capture))
        return all(
            HOLE in text or name not in words or is_expected(text, words[name])
            for name, text in captured
        )

    def irregular(self, name: str) -> Iterator[Match]:
        """Yield the matches of NAME among those entries that must see all of it."""
        for literal, (pattern, captures, indices, rule, term) in self.others:
            found = regex(pattern, indices).fullmatch(name) if literal in name else None
            if found is not None:
                yield Match(rule, term, dict(zip(captures, found.groups(), strict=True)))


def _matches(fits: Sequence[Fit], numbers: Numbers) -> list[Match]:
    found = []
    for key, table, captured, indices in fits:  # for each of tens of thousands of names
        entries = table.get(key(numbers))
        if entries is None or (indices and _starts_with_zero(numbers, indices)):
            continue
        values = [numbers[v] if isinstance(v, int) else v(numbers) for v in captured]
        for _, captures, _, rule, term in entries:
            found.append(Match(rule, term, dict(zip(captures, values, strict=True))))
    return found


def _names(rule: Rule, side: str) -> Iterator[tuple[Name, Set[str]]]:
    if isinstance(rule, Pairing):
        for term in rule.left if side == "left" else rule.right:
            yield term.name, rule.indices
    elif isinstance(rule, Tie):
        yield rule.alias, frozenset()
    elif rule.side == side:
        yield rule.name, frozenset()


def _entry(name: Name, indices: Set[str], rule: int, term: int) -> Entry:
    return Entry(_joined(name), tuple(c.name for c in name.captures), indices, rule, term)


def _joined(name: Name) -> Name:
    """Return NAME with no two literal parts in a row, which a number could reach across."""
    parts: list[str | Capture] = []
    for part in name.parts:
        if parts and isinstance(part, str) and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return Name(tuple(parts))


def _is_regular(name: Name) -> bool:
    """Return whether a skeleton says all of what the captures of NAME stand for.

    It does where a capture appears once and alone between two dots, so that there is one way to
    read a name, and where it touches no digit, so that it cannot take a part of a number.
    """
    captures = [part for part in name.parts if isinstance(part, Capture)]
    texts = [HOLE if isinstance(part, Capture) else part for part in name.parts]
    alone = all(segment.count(HOLE) < 2 for segment in "".join(texts).split("."))
    adjacent = re.search(rf"[0-9]{HOLE}|{HOLE}[0-9]", "".join(texts))
    return alone and not adjacent and len(captures) == len(name.captures)


def _expressions(entry: Entry) -> Iterator[str]:
    for part in entry.name.parts:
        if isinstance(part, str):
            yield f"({re.escape(DIGITS.sub(HOLE, part))})"
        elif part.name in entry.indices:
            yield f"(?P<index_{part.name}>{HOLE})"
        else:
            yield f"({'.+' if part.deep else '[^.]+'})"


def _fit(entries: Sequence[Entry], found: re.Match[str]) -> Fit:
    """Return how ENTRIES, which differ in numbers only, fit the skeleton FOUND."""
    fixed: list[int] = []
    captured: list[int | Callable[[Numbers], str]] = []
    indices: list[int] = []
    at = 0
    first = entries[0]
    for part, text in zip(first.name.parts, found.groups(), strict=True):
        holes = range(at, at + text.count(HOLE))
        at = holes.stop
        if isinstance(part, str):
            fixed += holes
            continue
        captured.append(holes.start if text == HOLE else _filled(text, holes))
        indices += holes if part.name in first.indices else ()
    key = itemgetter(*fixed) if fixed else _nothing
    table: dict[object, list[Entry]] = {}
    for entry in entries:
        texts = (part for part in entry.name.parts if isinstance(part, str))
        numbers = [number for text in texts for number in DIGITS.findall(text)]
        literal = itemgetter(*range(len(numbers)))(numbers) if numbers else None
        table.setdefault(literal, []).append(entry)
    return Fit(key, table, captured, tuple(indices))


def _nothing(_: Numbers) -> None:
    """Be the key of entries without literal numbers."""


def _starts_with_zero(numbers: Numbers, indices: Sequence[int]) -> bool:
    for at in indices:  # noqa: SIM110  (once per name: a generator takes three times as long)
        if numbers[at][0] == "0" != numbers[at]:
            return True
    return False


def _filled(text: str, holes: range) -> Callable[[Numbers], str]:
    """Return what fills the HOLES of TEXT with the numbers of a name."""
    if not holes:
        return lambda _: text
    form = text.replace("{", "{{").replace("}", "}}").replace(HOLE, "{}")
    return lambda numbers: form.format(*numbers[holes.start : holes.stop])
