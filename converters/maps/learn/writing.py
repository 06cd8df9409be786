"""The map of a trace: components, their rules, folded, named and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ..computed import Computed
from ..expressions import Definition, Expression, Literal, Words
from ..matching import Matcher
from ..names import Name
from ..rules import Drop, Pairing, Rule, Term, Tie
from ..weightmap import WeightMap
from .components import Component, components
from .drafting import FAMILY, pairing
from .drops import drop_rules
from .expressing import Speaker
from .folding import COUNTED, PARTIAL, Folded, called, fold, merge_words, names_of
from .forms import Form
from .normal import normal_forms
from .pieces import Unfit
from .programming import computed, is_copied
from .recording import Trace


class Drafts(NamedTuple):
    """The rules of a trace, with the names that its tensors have, and what to say of them."""

    rules: list[Rule]
    notes: list[str]


def write(trace: Trace, config: Mapping[str, Any]) -> tuple[WeightMap, tuple[str, ...]]:
    """Return the map of TRACE, and notes on it.

    Raises:
        UnsupportedError: the class makes a tensor of nothing, or a program cannot say what it does.
    """
    drafts = draft(trace, config)
    speaker = Speaker(config)
    folded = merge_words(fold(drafts.rules))
    counts, rules = named(folded, speaker)
    where = [Definition((name,), value) for name, value in counts.items()]
    rules = [sized(rule, speaker, {n for n in counts}) for rule in rules]
    weight_map = WeightMap(tuple(rules), tuple(where), "learned")
    return apart(weight_map, folded, trace), tuple(drafts.notes)


def draft(trace: Trace, config: Mapping[str, Any]) -> Drafts:
    """Return one rule for each component of TRACE."""
    found = components(trace, normal_forms(trace))
    dropped = [name for part in found if not part.targets for name in part.sources]
    drops = drop_rules(dropped, trace.headers, config)
    result = Drafts([], list(lost_notes(drops, dropped)))
    for component in found:
        if not component.sources:
            names = ", ".join(component.targets[:3])
            raise UnsupportedError(f"makes {names} of no tensor, which no map can say")
        if component.targets:
            result.rules.extend(_rules(component, trace, result.notes))
        else:
            result.rules.extend(drops[name] for name in component.sources if name in drops)
    return result


def _rules(component: Component, trace: Trace, notes: list[str]) -> Iterator[Rule]:
    """Yield the rule of a component, and a tie for each target that is a copy of another."""
    copied = set(is_copied(component))
    if copied:
        component = _without(component, copied)
    try:
        rule = pairing(component, trace.headers, trace.layout)
    except Unfit as why:
        rule = computed(component, trace)
        notes.append(f"{', '.join(component.targets[:2])}: {why}; the way home needs the original")
    yield rule
    for name in sorted(copied):
        original = component.targets[0]
        yield Tie(Name((name,)), Name((original,)))
        notes.append(f"{name} is a copy of {original}: not written, the class makes it on loading")


def _without(component: Component, copied: set[str]) -> Component:
    kept = [
        (name, form)
        for name, form in zip(component.targets, component.forms, strict=True)
        if name not in copied
    ]
    names, forms = zip(*kept, strict=True)
    return replace(component, targets=names, forms=forms)


def lost_notes(drops: Mapping[str, Rule], dropped: Sequence[str]) -> Iterator[str]:
    """Yield what is lost, a line per rule."""
    for rule in drops.values():
        if isinstance(rule, Drop) and rule.policy == "original":
            head = str(rule.name).removesuffix("{**}")
            size = sum(name.startswith(head) for name in dropped)
            tensors = "1 tensor" if size == 1 else f"{size} tensors"
            yield f"{rule.name}: {tensors} dropped by the class; the way home needs the original"


def named(
    folded: Sequence[Folded], speaker: Speaker
) -> tuple[dict[str, Expression], list[Rule]]:
    """Return what the counted captures stand for, and the rules with their captures named."""
    counts: dict[str, Expression] = {}
    rules = []
    for item in folded:
        names: dict[str, str] = {}
        for at, (values, before) in enumerate(zip(item.indices, item.befores, strict=True)):
            counted = _counted(item, values, before, speaker)
            taken = set(names.values())
            if counted is not None:
                known = {str(value): name for name, value in counts.items() if name not in taken}
                free = (name for name in COUNTED if name not in counts)
                name = known.get(str(counted)) or next(free, None)
                if name is not None:
                    counts[name] = counted
                    names[f"x{at}"] = name
                    continue
            names[f"x{at}"] = next(name for name in PARTIAL if name not in taken)
        rules.append(called(item, names))
    return counts, rules


def _counted(
    item: Folded, values: Sequence[int], before: str, speaker: Speaker
) -> Expression | None:
    if list(values) != list(range(len(values))):
        return None
    return speaker.count(len(values), before, map(str, names_of(item.rule)))


def sized(rule: Rule, speaker: Speaker, taken: set[str]) -> Rule:
    """Return RULE with its sizes said by the configuration where it says them."""
    if not isinstance(rule, Pairing) or not rule.where:
        return rule
    names = [str(term.name) for term in (*rule.left, *rule.right)]
    by_value: dict[str, tuple[list[str], Expression | Words]] = {}
    for definition in rule.where:
        value = definition.value
        if isinstance(value, Literal) and value.value != 1:
            value = speaker.size(int(value.value), _speaking(definition.names[0], names)) or value
        by_value.setdefault(str(value), ([], value))[0].extend(definition.names)
    where = tuple(Definition(tuple(group), value) for group, value in by_value.values())
    return replace(rule, where=where)


def _speaking(atom: str, names: Sequence[str]) -> list[str]:
    """Return the NAMES that a size called ATOM is about: those with its word in them, or all."""
    about = [name for name in names if any(s.split("_")[0] == atom for s in name.split("."))]
    return about or list(names)


def apart(weight_map: WeightMap, folded: Sequence[Folded], trace: Trace) -> WeightMap:
    """Return the map with the indices written out of rules whose names meet those of others."""
    rules = list(weight_map.rules)
    for side, names in (("left", trace.headers), ("right", trace.layout)):
        matcher = Matcher(rules, side)
        for name in names:
            found = matcher(name)
            if len(found) > 1:
                for match in found:
                    rules[match.rule] = _listed(rules[match.rule], folded[match.rule])
    return replace(weight_map, rules=tuple(rules))


def _listed(rule: Rule, folded: Folded) -> Rule:
    """Return RULE with the values of its partial captures listed."""
    if not isinstance(rule, Pairing):
        return rule
    defined = {name for definition in rule.where for name in definition.names}
    captures = {c.name: at for at, c in enumerate(_index_captures(rule)) if c.name in PARTIAL}
    lists = [
        Definition((name,), Words(tuple(map(str, folded.indices[at]))))
        for name, at in captures.items()
        if name not in defined and at < len(folded.indices)
    ]
    return replace(rule, where=(*rule.where, *lists))


def _index_captures(rule: Pairing) -> list[Any]:
    found = chain.from_iterable(term.name.captures for term in (*rule.left, *rule.right))
    return [c for c in dict.fromkeys(found) if c.name in (*PARTIAL, *COUNTED)]



