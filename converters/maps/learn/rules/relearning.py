"""Find which key of the configuration a size comes from, by asking the class with another one.

The same tensors are traced under changed configurations: a key halved or doubled, or one made
smaller and another larger by as much. Of several candidates that come to the size, one is meant if
the size then changes as that one predicts, and as no other does. A single key that comes to the size,
where no other does, needs no such proof unless the size is very small. Configurations under which
the class fails show nothing; neither does a size that stays: the class may take it from shapes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import islice, permutations
from typing import Any, Final, TypeAlias

from .....errors import WeighbridgeError
from ....checkpoints.base import Header
from ...notation.expressions import Expression, evaluate
from ...notation.names import match
from ...notation.rules import Pairing
from ..trace.components import Component, components
from ..trace.normal import normal_forms
from ..trace.pieces import Unfit
from ..trace.recording import Sanitize, Trace, record
from .drafting import FAMILY, pairing
from .expressing import LAYERS, keys, keys_in
from .families import INTEGER

Config: TypeAlias = Mapping[str, Any]
Again: TypeAlias = Callable[[Config], Sanitize]  # the sanitize of a class for a config
Sizes: TypeAlias = dict[str, int]
SMALL: Final = 16
MOST_KEYS: Final = 6  # that are changed in turn


class Question:
    """What a size of a rule may come from.

    Attributes:
        target: a tensor that an instance of the rule makes.
        sources: names of what the instance is made of.
        atom: the size.
        candidates: the plainest expressions that come to it.
        plain: whether a single candidate is believed: it is a key, and the size is not so small
            that many things have it.
        confirmed: those that predicted how it changes.
    """

    def __init__(
        self, rule: Pairing, atom: str, size: int, levels: Sequence[list[Expression]]
    ) -> None:
        self.target = rule.right[0].name.fill({FAMILY: "0"})
        self.sources = tuple(term.name for term in rule.left)
        self.atom = atom
        self.candidates = next((level for level in levels if level), [])
        self.plain = self.candidates is levels[0] and size >= SMALL
        self.confirmed: list[Expression] = []

    def about(self, source: str) -> bool:
        """Return whether the rule takes SOURCE."""
        return any(match(name, source, frozenset({FAMILY})) is not None for name in self.sources)

    @property
    def open(self) -> bool:
        """Whether the class has to be asked which candidate is meant."""
        return len(self.confirmed) != 1 and len(self.candidates) > self.plain

    def answer(self) -> Expression | None:
        """Return the only candidate that is confirmed, or a plain one that is the only one."""
        found = self.confirmed or (self.candidates if self.plain else [])
        return found[0] if len(found) == 1 else None

    def note(self, size: int, before: int, config: Config) -> None:
        """Note that the size is SIZE under CONFIG; it was another one BEFORE."""
        right = [e for e in self.candidates if _value(e, config) == size != before]
        if right:
            both = [e for e in self.confirmed if e in right]
            self.confirmed = both if self.confirmed else right


class Relearning:
    """A class, a few tensors that stand for all, and what is asked about them."""

    def __init__(self, again: Again, config: Config, headers: Mapping[str, Header]) -> None:
        self.again, self.config, self.headers = again, config, headers

    def confirm(self, questions: Sequence[Question]) -> bool:
        """Find out which candidates of QUESTIONS are meant; return whether the class could be asked."""
        before = self.tried(self.config, questions)
        if before is None or not all(q.atom in s for q, s in zip(questions, before, strict=True)):
            return False
        found = (key for q in questions for e in q.candidates for key in sorted(keys_in(e)))
        some = islice(dict.fromkeys(found), MOST_KEYS)
        values = {key: int(lookup(self.config, key)) for key in some}
        refused = [
            key for key in values if not self.ask(questions, before, {key: values[key] // 2})
        ]
        for one, other in permutations(refused, 2):
            by = values[one] // 2
            if values[one] == values[other] and any(question.open for question in questions):
                self.ask(questions, before, {one: values[one] - by, other: values[other] + by})
        for key in refused:
            if any(question.open for question in questions):
                self.ask(questions, before, {key: values[key] * 2})
        return True

    def ask(
        self, questions: Sequence[Question], before: list[Sizes], change: Mapping[str, int]
    ) -> bool:
        """Note in QUESTIONS what a CHANGE of the config does; return whether the class took it."""
        config = changed(self.config, change)
        after = self.tried(config, questions)
        for question, old, new in zip(questions, before, after or (), strict=after is not None):
            if question.atom in new:
                question.note(new[question.atom], old[question.atom], config)
        return after is not None

    def tried(self, config: Config, questions: Sequence[Question]) -> list[Sizes] | None:
        """Return the sizes under CONFIG, ``None`` if the class fails."""
        try:
            return self.sizes(config, questions)
        except (WeighbridgeError, Unfit):
            return None

    def sizes(self, config: Config, questions: Sequence[Question]) -> list[Sizes]:
        """Return the sizes under CONFIG of the rule that each question is about."""
        trace = record(self.again(config), self.headers)
        of = {
            name: part for part in components(trace, normal_forms(trace)) for name in part.targets
        }
        return [_sizes(of.get(question.target), trace) for question in questions]


def confirm(
    again: Again, config: Config, headers: Mapping[str, Header], questions: Sequence[Question]
) -> None:
    """Find out which candidates of QUESTIONS are meant.

    Args:
        again: gives the ``sanitize`` of a class for a config.
        config: of the model.
        headers: of tensors that stand for all, those of the questions among them.
        questions: what may be meant.
    """
    asked = [question for question in questions if question.open]
    few = {name: header for name, header in headers.items() if any(q.about(name) for q in asked)}
    if asked and not Relearning(again, with_layers(config, few), few).confirm(asked):
        Relearning(again, config, headers).confirm(asked)


def with_layers(config: Config, names: Iterable[str]) -> dict[str, Any]:
    """Return CONFIG with as few layers as NAMES need; making a large model takes time."""
    indices = [int(found) for name in names for found in INTEGER.findall(name)]
    most = max(indices, default=0) + 1
    keys_ = [key for key in keys(config) if key.words & LAYERS and key.value > most]
    return changed(config, {key.name: most for key in keys_})


def _sizes(component: Component | None, trace: Trace) -> Sizes:
    return {} if component is None else sizes_in(pairing(component, trace.headers, trace.layout))


def sizes_in(rule: Pairing) -> Sizes:
    """Return the sizes that the definitions of RULE give as numbers."""
    return {
        name: definition.value.value
        for definition in rule.where
        for name in definition.names
        if hasattr(definition.value, "value") and isinstance(definition.value.value, int)
    }


def _value(expression: Expression, config: Config) -> int | float | None:
    try:
        return evaluate(expression, lambda key: lookup(config, key))
    except (LookupError, ArithmeticError):
        return None


def lookup(config: Config, key: str) -> int:
    """Return the value of a dotted KEY.

    Raises:
        KeyError: there is none.
    """
    return reduce(lambda inner, part: inner[part], key.split("."), config)  # type: ignore[return-value]


def changed(config: Config, values: Mapping[str, int]) -> dict[str, Any]:
    """Return CONFIG with other VALUES, by dotted key.

    >>> changed({"a": {"b": 1}, "c": 2}, {"a.b": 3})
    {'a': {'b': 3}, 'c': 2}
    """
    made = copy.deepcopy(dict(config))
    for key, value in values.items():
        *path, last = key.split(".")
        inner = made
        for part in path:
            inner = inner[part]
        inner[last] = value
    return made
