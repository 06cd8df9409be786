"""Find the rule that speaks of a tensor, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from .names import Name, regex
from .rules import Pairing, Rule, Tie


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
    """One name of a rule, ready to be compared."""

    literal: str
    pattern: re.Pattern[str]
    captures: tuple[str, ...]
    rule: int
    term: int


class Matcher:
    """The names of one side of a map.

    >>> from .weightmap import WeightMap
    >>> matcher = Matcher(WeightMap.parse("h.{n}.w <-> layers.{n}.weight").rules, "right")
    >>> matcher("layers.3.weight"), matcher("h.3.w")
    ([Match(rule=0, term=0, captures={'n': '3'})], [])
    """

    def __init__(self, rules: Sequence[Rule], side: str) -> None:
        entries = [
            (_is_fallback(rule), _entry(name, indices, number, term))
            for number, rule in enumerate(rules)
            for term, (name, indices) in enumerate(_names(rule, side))
        ]
        self.entries = [entry for fallback, entry in entries if not fallback]
        self.fallbacks = [entry for fallback, entry in entries if fallback]

    def __call__(self, name: str) -> list[Match]:
        """Return every match of NAME; those of ``else`` rules only where there is no other."""
        return list(_matches(self.entries, name)) or list(_matches(self.fallbacks, name))


def _names(rule: Rule, side: str) -> Iterator[tuple[Name, Set[str]]]:
    if isinstance(rule, Pairing):
        for term in rule.left if side == "left" else rule.right:
            yield term.name, rule.indices
    elif isinstance(rule, Tie):
        yield rule.alias, frozenset()
    elif rule.side == side:
        yield rule.name, frozenset()


def _is_fallback(rule: Rule) -> bool:
    return isinstance(rule, Pairing) and rule.marker == "else"


def _entry(name: Name, indices: Set[str], rule: int, term: int) -> Entry:
    captures = tuple(capture.name for capture in name.captures)
    return Entry(name.literal, regex(name, indices), captures, rule, term)


def _matches(entries: Sequence[Entry], name: str) -> Iterator[Match]:
    for literal, pattern, captures, rule, term in entries:
        if literal in name:
            found = pattern.fullmatch(name)
            if found is not None:
                yield Match(rule, term, dict(zip(captures, found.groups(), strict=True)))
