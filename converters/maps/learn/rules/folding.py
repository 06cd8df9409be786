"""One rule for many: captures where rules differ in an index, words where they differ in a word."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...notation.expressions import Definition, Words
from ...notation.names import Capture, Name, parse_name
from ...notation.rules import Drop, Pairing, Rule, Tie
from .families import INTEGER, filled

WORD: Final = re.compile(r"[^\W\d][\w\-]*")
PARTIAL: Final = ("l", "i", "j")  # captures whose indices have gaps, or no count in the config
COUNTED: Final = ("n", "m", "k")  # captures whose indices run from 0 to a count of the config
WORDS: Final = ("p", "w", "t")  # captures that stand for words


@dataclass(frozen=True)
class Folded:
    """A rule and what its captures stand for.

    Attributes:
        rule: the rule; its captures are called ``0``, ``1`` ...
        order: the place of its first tensor.
        places: the values that the captures have together, in the order of the captures.
        befores: the segment before each of them.
    """

    rule: Rule
    order: int
    places: frozenset[tuple[int, ...]] = frozenset()
    befores: tuple[str, ...] = ()

    @property
    def indices(self) -> tuple[tuple[int, ...], ...]:
        """The values of each capture."""
        return tuple(tuple(sorted(set(column))) for column in zip(*self.places, strict=True))

    def even(self, at: int) -> bool:
        """Say whether capture AT has all its values, whatever the others are: stages differ in depth.

        >>> ragged = Folded(Tie(Name(()), Name(())), 0, frozenset({(0, 0), (1, 0), (1, 1)}))
        >>> ragged.even(1), replace(ragged, places=frozenset({(0, 0), (0, 1)})).even(1)
        (False, True)
        """
        others = {(*place[:at], *place[at + 1 :]) for place in self.places}
        return len(self.places) == len(others) * len(self.indices[at])


def names_of(rule: Rule) -> tuple[Name, ...]:
    """Return the names in RULE."""
    if isinstance(rule, Pairing):
        return tuple(term.name for term in rule.terms)
    return (rule.name,) if isinstance(rule, Drop) else (rule.alias, rule.original)


def renamed(rule: Rule, name: Callable[[Name], Name]) -> Rule:
    """Return RULE with every name replaced."""
    if isinstance(rule, Pairing):
        left, right = (
            tuple(replace(term, name=name(term.name)) for term in side)
            for side in (rule.left, rule.right)
        )
        return replace(rule, left=left, right=right)
    if isinstance(rule, Drop):
        return replace(rule, name=name(rule.name))
    return Tie(name(rule.alias), name(rule.original))


def fold(rules: Sequence[Rule]) -> list[Folded]:
    """Return RULES with those made one that differ in indices only, in the order of the first."""
    groups: dict[Rule, list[tuple[int, Rule]]] = defaultdict(list)
    for order, rule in enumerate(rules):
        groups[renamed(rule, lambda name: Name((INTEGER.sub("#", str(name)),)))].append(
            (order, rule)
        )
    return sorted(
        (folded for group in groups.values() for folded in _fold(group)),
        key=lambda folded: folded.order,
    )


def _indices(rule: Rule) -> tuple[int, ...]:
    return tuple(int(text) for name in names_of(rule) for text in INTEGER.findall(str(name)))


def _fold(group: list[tuple[int, Rule]]) -> Iterator[Folded]:
    """Yield one rule for the GROUP if there is one, else all of them."""
    columns = list(zip(*(_indices(rule) for _, rule in group), strict=True))
    varying = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    order, first = group[0]
    if not varying:
        yield from (Folded(rule, at) for at, rule in group)
        return
    later = [column for column in varying if isinstance(first, Drop) and min(column) > 0]
    if later and len(varying) > 1:  # of these the first are kept, such as experts: none for all
        for index in sorted(set(later[0])):
            yield from _fold([it for it, at in zip(group, later[0], strict=True) if at == index])
        return
    texts = iter(
        Capture(f"x{varying.index(column)}") if column in varying else str(column[0])
        for column in columns
    )
    rule = renamed(first, lambda name: _captured(name, texts))
    if rule.flaw():
        yield from (Folded(rule, at) for at, rule in group)
        return
    places = frozenset(zip(*varying, strict=True))
    yield Folded(rule, order, places, tuple(_before(rule, at) for at in range(len(varying))))


def _captured(name: Name, texts: Iterator[str | Capture]) -> Name:
    text = str(name)
    count = len(INTEGER.findall(text))
    spelled = filled(
        INTEGER.sub("{}", text.replace("{", "<").replace("}", ">")),
        [next(texts) for _ in range(count)],
    )
    return parse_name(str(spelled).replace("<", "{").replace(">", "}"))


def _before(rule: Rule, at: int) -> str:
    head = str(names_of(rule)[0]).partition(f"{{x{at}}}")[0]
    return head.rstrip(".").rpartition(".")[2]


def merge_words(rules: Iterable[Folded]) -> list[Folded]:
    """Return RULES with those made one that differ in one word only, as long as there are such."""
    rules = list(rules)
    for capture in WORDS:
        while groups := _word_groups(rules, capture):
            group = max(groups, key=len)
            taken = {id(folded) for folded, _ in group}
            merged = _merged(group, capture)
            rules = [folded for folded in rules if id(folded) not in taken]
            rules.append(merged)
    return sorted(rules, key=lambda folded: folded.order)


def _word_groups(rules: Sequence[Folded], capture: str) -> list[list[tuple[Folded, str]]]:
    found: dict[object, list[tuple[Folded, str]]] = defaultdict(list)
    for folded in rules:
        if isinstance(folded.rule, Pairing) and all(
            capture not in {c.name for c in name.captures} for name in names_of(folded.rule)
        ):
            for word, template in _templates(folded.rule):
                found[(template, folded.places, folded.befores)].append((folded, word))
    return [group for group in found.values() if len(group) > 1]


def _templates(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Yield each word that stands once in every name of RULE, and the rule without it."""
    spelled = [str(name).split(".") for name in names_of(rule)]
    for word in dict.fromkeys(spelled[0]):
        if WORD.fullmatch(word) and all(segments.count(word) == 1 for segments in spelled):
            yield word, renamed(rule, lambda name, word=word: _replaced(name, word, "#"))  # type: ignore[misc]


def _replaced(name: Name, word: str, by: str) -> Name:
    return Name((".".join(by if s == word else s for s in str(name).split(".")),))


def _merged(group: list[tuple[Folded, str]], capture: str) -> Folded:
    group = sorted(group, key=lambda member: member[0].order)
    first, word = group[0]
    rule = renamed(
        first.rule, lambda name: parse_name(str(_replaced(name, word, f"{{{capture}}}")))
    )
    words = Definition((capture,), Words(tuple(word for _, word in group)))
    if isinstance(rule, Pairing):
        rule = replace(rule, where=(*rule.where, words))
    return replace(first, rule=rule)


def called(folded: Folded, names: Mapping[str, str]) -> Rule:
    """Return the rule with its captures renamed."""

    def name(old: Name) -> Name:
        return Name(
            tuple(
                Capture(names.get(part.name, part.name), part.deep)
                if isinstance(part, Capture)
                else part
                for part in old.parts
            )
        )

    return renamed(folded.rule, name)
