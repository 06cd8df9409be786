"""The map of a trace: components, their rules, folded, named and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

from .....errors import UnsupportedError
from ...binding.matching import Matcher, allows, expectations
from ...binding.weightmap import WeightMap
from ...notation.axes import names
from ...notation.definitions import values
from ...notation.expressions import Definition, Expression, Literal, Words
from ...notation.names import Name, match
from ...notation.rules import Drop, Pairing, Rule, Term, Tie
from ...programs.computed import Computed
from ..drops import drop_rules
from ..trace.components import Component, components
from ..trace.normal import normal_forms
from ..trace.pieces import Unfit
from ..trace.recording import Trace
from .drafting import FAMILY, pairing
from .expressing import Speaker
from .folding import COUNTED, PARTIAL, Folded, called, fold, merge_words, names_of
from .programming import Programs, copied
from .relearning import Again, Question, confirm, sizes_in

BACK: Final = "the way back needs the original checkpoint"


class Drafts(NamedTuple):
    """The rules of a trace, with the names that its tensors have.

    Attributes:
        rules: in the order of the tensors.
        why: for each rule with a program, by its place, why no layout explains it.
        dropped: the tensors that the class leaves out.
    """

    rules: list[Rule]
    why: dict[int, str]
    dropped: list[str]


class Written(NamedTuple):
    """The map of a trace.

    Attributes:
        map: its rules folded, its sizes named by the configuration.
        notes: what a person should know of it.
        rules: one for each component, with the names that its tensors have.
    """

    map: WeightMap
    notes: tuple[str, ...]
    rules: list[Rule]


def write(trace: Trace, config: Mapping[str, Any], again: Again | None = None) -> Written:
    """Return the map of TRACE.

    Args:
        trace: what a class does.
        config: of the model.
        again: gives the ``sanitize`` of the class for another config, to learn what a size comes
            from.

    Raises:
        UnsupportedError: the class makes a tensor of nothing, or a program cannot say what it does.
    """
    return written(draft(trace, config), trace, config, again)


def written(
    drafts: Drafts, trace: Trace, config: Mapping[str, Any], again: Again | None = None
) -> Written:
    """Return the map of DRAFTS, the rules of TRACE; as for :func:`write`."""
    speaker = Speaker(config)
    folded = merge_words(fold(drafts.rules))
    counts, rules = named(folded, speaker)
    asked = questions(folded, drafts.rules, speaker)
    if again is not None:
        few = {name: trace.headers[name] for name in examples(folded, drafts.rules, trace)}
        confirm(again, config, few, list(asked.values()))
    rules = [sized(rule, at, asked, speaker) for at, rule in enumerate(rules)]
    used = {name for rule in rules if isinstance(rule, Pairing) for name in rule.defined}
    where = [Definition((name,), value) for name, value in counts.items() if name in used]
    where, rules = shared(where, rules)
    weight_map = WeightMap(tuple(rules), tuple(where), "learned")
    weight_map = apart(weight_map, folded, trace, config)
    return Written(weight_map, tuple(notes(folded, rules, drafts)), drafts.rules)


def shared(where: list[Definition], rules: list[Rule]) -> tuple[list[Definition], list[Rule]]:
    """Return the definitions of the whole map, with the count of a family if all rules agree on it."""
    found = {
        str(d.value): d.value
        for rule in rules
        if isinstance(rule, Pairing)
        for d in rule.where
        if d.names == (FAMILY,)
    }
    if len(found) != 1 or any(isinstance(value, Literal) for value in found.values()):
        return where, rules
    rules = [
        replace(rule, where=tuple(d for d in rule.where if d.names != (FAMILY,)))
        if isinstance(rule, Pairing)
        else rule
        for rule in rules
    ]
    return [*where, Definition((FAMILY,), next(iter(found.values())))], rules


def draft(trace: Trace, config: Mapping[str, Any], fewest: int = 0) -> Drafts:
    """Return one rule for each component of TRACE that has the FEWEST sources or more."""
    found = components(trace, normal_forms(trace))
    found = [component for component in found if len(component.sources) >= fewest]
    dropped = [name for part in found if not part.targets for name in part.sources]
    drops = drop_rules(dropped, trace.headers, config)
    result, programs = Drafts([], {}, dropped), Programs(trace)
    for component in found:
        if not component.sources:
            names_ = ", ".join(component.targets[:3])
            raise UnsupportedError(f"makes {names_} of no tensor, which no map can say")
        if component.targets:
            _add(component, trace, programs, result)
        else:
            result.rules.extend(drops[name] for name in component.sources if name in drops)
    return result


def _add(component: Component, trace: Trace, programs: Programs, result: Drafts) -> None:
    """Add the rule of a component to RESULT, and a tie for each target that is a copy of another."""
    copies = set(copied(component))
    if copies:
        component = _without(component, copies)
    try:
        result.rules.append(pairing(component, trace.headers, trace.layout))
    except Unfit as why:
        result.why[len(result.rules)] = str(why)
        result.rules.append(programs.rule(component))
    original = Name((component.targets[0],))
    result.rules.extend(Tie(Name((name,)), original) for name in sorted(copies))


def _without(component: Component, copied: set[str]) -> Component:
    kept = [
        (name, form)
        for name, form in zip(component.targets, component.forms, strict=True)
        if name not in copied
    ]
    names, forms = zip(*kept, strict=True)
    return replace(component, targets=names, forms=forms)


def notes(folded: Sequence[Folded], rules: Sequence[Rule], drafts: Drafts) -> Iterator[str]:
    """Yield what a person should know of the RULES that do not lead both ways."""
    for item, rule in zip(folded, rules, strict=True):
        if isinstance(rule, Drop) and rule.policy == "original":
            lost = sum(match(rule.name, name) is not None for name in drafts.dropped)
            tensors = "1 tensor is" if lost == 1 else f"{lost} tensors are"
            yield f"{rule.name}: {tensors} dropped by the class; {BACK}"
        elif isinstance(rule, Computed) and not rule.undoable:
            made = ", ".join(str(term.name) for term in rule.right)
            yield f"{made}: {drafts.why[item.order]}; {BACK}"
        elif isinstance(rule, Tie) and str(rule.alias) not in drafts.dropped:
            yield f"{rule.alias} is a copy of {rule.original}: not written, the class makes it again"


def named(folded: Sequence[Folded], speaker: Speaker) -> tuple[dict[str, Expression], list[Rule]]:
    """Return what the counted captures stand for, and the rules with their captures named."""
    counts: dict[str, Expression] = {}
    rules = []
    for item in folded:
        names: dict[str, str] = {}
        for at, (indices, before) in enumerate(zip(item.indices, item.befores, strict=True)):
            counted = _counted(item, indices, before, speaker) if item.even(at) else None
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


def questions(
    folded: Sequence[Folded], drafted: Sequence[Rule], speaker: Speaker
) -> dict[tuple[int, str], Question]:
    """Return what the sizes of each rule may come from, by the rule's number and the size's name."""
    found = {}
    for number, item in enumerate(folded):
        rule = drafted[item.order]
        if not isinstance(rule, Pairing):
            continue
        for atom, value in sizes_in(rule).items():
            if value > 1 and atom != FAMILY:
                spelled = [str(name) for name in names_of(rule)]
                found[number, atom] = Question(rule, atom, value, speaker.sizes(value, spelled))
    return found


def examples(folded: Sequence[Folded], drafted: Sequence[Rule], trace: Trace) -> Iterator[str]:
    """Yield the sources of the first instance of every rule."""
    first = [drafted[item.order] for item in folded]
    matcher = Matcher(first, "left")
    yield from (name for name in trace.headers if matcher(name))


def sized(
    rule: Rule, number: int, asked: Mapping[tuple[int, str], Question], speaker: Speaker
) -> Rule:
    """Return RULE with its sizes as the configuration names them, where it does."""
    if not isinstance(rule, Pairing) or not rule.where:
        return rule
    spelled = [str(name) for name in names_of(rule)]
    by_value: dict[str, tuple[list[str], Expression | Words]] = {}
    for definition in rule.where:
        value: Expression | Words | None = definition.value
        [name, *_] = definition.names
        if name == FAMILY and isinstance(value, Literal):
            value = speaker.count(int(value.value), "experts", spelled)
        elif (number, name) in asked:
            value = asked[number, name].answer()
        value = definition.value if value is None else value
        key = FAMILY if name == FAMILY else str(value)
        by_value.setdefault(key, ([], value))[0].extend(definition.names)
    where = tuple(Definition(tuple(group), value) for group, value in by_value.values())
    for definition in where:
        if _is_spare(definition, where, rule):
            where = tuple(other for other in where if other is not definition)
    return replace(rule, where=where)


def _is_spare(definition: Definition, where: Sequence[Definition], rule: Pairing) -> bool:
    """Return whether DEFINITION is a bare number that shapes determine, the others known."""
    value = definition.value
    if not isinstance(value, Literal) or value.value == 1 or definition.names == (FAMILY,):
        return False
    known = {name for other in where if other is not definition for name in other.names}
    return all(
        set(definition.names) <= solvable(side, known | rule.indices)
        for side in (rule.left, rule.right)
    )


def solvable(terms: Iterable[Term], known: Set[str]) -> set[str]:
    """Return the sizes that the shapes of TERMS determine, those in KNOWN included."""
    found = {*known}
    axes = [list(names((axis,))) for term in terms for axis in term.axes or ()]
    # As when a map is bound: an equation with one unknown, in one place, is solved.
    while new := {
        rest[0] for axis in axes if len(rest := [n for n in axis if n not in found]) == 1
    }:
        found |= new
    return found


def apart(
    weight_map: WeightMap, folded: Sequence[Folded], trace: Trace, config: Mapping[str, Any]
) -> WeightMap:
    """Return the map with the indices listed in rules that would take the tensors of others."""
    rules = list(weight_map.rules)
    expected = [
        expectations(values(weight_map.definitions(rule), config))
        if isinstance(rule, Pairing)
        else {}
        for rule in rules
    ]
    for side, tensors in (("left", trace.headers), ("right", trace.layout)):
        matcher = Matcher(rules, side)
        for name in tensors:
            found = matcher(name)
            if len(found) > 1:
                found = [m for m in found if allows(expected[m.rule], m.captures)]
            for one in found if len(found) > 1 else ():
                rules[one.rule] = _listed(rules[one.rule], folded[one.rule])
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
        if name not in defined and at < len(folded.indices) and folded.even(at)
    ]
    return replace(rule, where=(*rule.where, *lists))


def _index_captures(rule: Pairing) -> list[Any]:
    found = chain.from_iterable(term.name.captures for term in rule.terms)
    return [c for c in dict.fromkeys(found) if c.name in (*PARTIAL, *COUNTED)]
