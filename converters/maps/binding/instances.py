"""Sort tensors into instances of rules: one layer's q, k and v, or all experts of one layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice, product
from math import prod
from typing import NamedTuple, TypeAlias

from ..notation.rules import Pairing, Rule, Term, first_line
from .matching import Expected, Match, is_expected

Index: TypeAlias = tuple[int, ...]
SHOWN = 8  # names of missing tensors per term; the count says how many there are
COMPARED = 50  # unmatched names for which the nearest one is looked up


class Instance(NamedTuple):
    """The tensors that one rule takes together.

    Attributes:
        number: which rule of the map it is.
        rule: the rule.
        captures: what its captures stand for, except those that are axes.
        members: for each term on the left, its tensors by index.
    """

    number: int
    rule: Pairing
    captures: dict[str, str]
    members: tuple[dict[Index, str], ...]

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many tensors there should be by each captured axis."""
        counts: dict[str, int] = {}
        for term, members in zip(self.rule.left, self.members, strict=True):
            for at, name in enumerate(term.family(self.rule.indices)):
                found = max((index[at] for index in members), default=-1) + 1
                counts[name] = sizes.get(name, max(found, counts.get(name, 0)))
        return counts

    def missing(self, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield what is not there, term by term."""
        for term, members in zip(self.rule.left, self.members, strict=True):
            family = term.family(self.rule.indices)
            if not family and members:
                continue
            lacking = prod(counts[name] for name in family) - sum(
                all(i < counts[name] for i, name in zip(index, family, strict=True))
                for index in members
            )
            # An index may be absurdly large; this much of the grid holds enough of what is missing.
            grid = (range(min(counts[name], len(members) + SHOWN)) for name in family)
            absent = (index for index in product(*grid) if index not in members)
            for index in islice(absent, min(lacking, SHOWN)):
                yield f"{self.fill(term, index)} is missing (rule: {first_line(self.rule)})"
            if lacking > SHOWN:
                yield f"{self.fill(term)}: {lacking - SHOWN} more are missing"

    def fill(self, term: Term, index: Index | None = None) -> str:
        """Return the name of TERM in this instance, at INDEX of its captured axes."""
        family = term.family(self.rule.indices)
        texts = map(str, index) if index is not None else (f"{{{name}}}" for name in family)
        return term.name.fill(self.captures | dict(zip(family, texts, strict=True)))


def collect(rules: tuple[Rule, ...], matches: Mapping[str, Match]) -> list[Instance]:
    """Return the instances of all pairings in the order of their first tensor."""
    found: dict[tuple[int, tuple[str, ...]], Instance] = {}
    families = [_families(rule) for rule in rules]
    for name, (number, term, captures) in matches.items():
        rule = rules[number]
        if not isinstance(rule, Pairing):
            continue
        key = (number, tuple([captures[capture] for capture in rule.shared]))
        instance = found.get(key)
        if instance is None:
            shared = dict(zip(rule.shared, key[1], strict=True))
            instance = found[key] = Instance(number, rule, shared, tuple({} for _ in rule.left))
        index = tuple([int(captures[axis]) for axis in families[number][term]])
        instance.members[term][index] = name
    return list(found.values())


def _families(rule: Rule) -> list[tuple[str, ...]]:
    """Return the captures that are axes, for each term on the left of RULE."""
    if not isinstance(rule, Pairing):
        return []
    return [term.family(rule.indices) for term in rule.left]


def unmatched(
    rules: tuple[Rule, ...], instances: list[Instance], loose: list[str]
) -> Iterator[str]:
    """Yield the rules that must match and do not; LOOSE are the names no rule speaks of."""
    seen = {instance.number for instance in instances}
    for number, rule in enumerate(rules):
        if isinstance(rule, Pairing) and not rule.marker and number not in seen:
            names = ", ".join(str(term.name) for term in rule.left)
            yield f"{names} is missing: no tensor has such a name{nearest(names, loose)}"


def gaps(
    instances: list[Instance], expected: Mapping[int, Mapping[str, Expected]]
) -> Iterator[str]:
    """Yield what is missing or unexpected among instances that differ in one capture only.

    EXPECTED says, by rule number, what a capture must stand for: so many indices, or words.
    """
    groups: dict[tuple[int, str, tuple[str, ...]], dict[str, Instance]] = {}
    for instance in instances:
        for name in expected[instance.number].keys() & instance.captures.keys():
            others = tuple(value for key, value in instance.captures.items() if key != name)
            group = groups.setdefault((instance.number, name, others), {})
            group[instance.captures[name]] = instance
    for (number, name, _), group in groups.items():
        yield from _gaps(group, name, expected[number][name])


def _gaps(group: Mapping[str, Instance], name: str, expected: Expected) -> Iterator[str]:
    """Yield which of the EXPECTED instances the GROUP has not, and which others it has."""
    if isinstance(expected, int):
        why = f"{name} = {expected}"
        values = list(map(str, range(min(expected, len(group) + SHOWN))))
    else:
        why = f"{name} = {' | '.join(expected)}"
        values = list(expected)
    spare = [value for value in group if not is_expected(value, expected)]
    sample = next(iter(group.values()))
    for value in [value for value in values if value not in group]:
        absent = sample._replace(captures=sample.captures | {name: value})
        yield from (f"{absent.fill(term)} is missing ({why})" for term in sample.rule.left)
    for value in spare:
        names = (group[value].fill(term) for term in sample.rule.left)
        yield from (f"{text} is unexpected ({why})" for text in names)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint at the one of NAMES that is most like NAME, empty if none is."""
    near = get_close_matches(name, list(islice(names, 2000)), 1)
    return f"; nearest: {near[0]}" if near else ""
