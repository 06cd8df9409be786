"""Compose two maps into one: names that meet are unified, axes that meet are substituted.

A rule with several tensors in the middle meets one rule per tensor, each of which has that tensor
alone. Where both have several, or both change values, the composition is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ...errors import UnsupportedError
from .binding.weightmap import WeightMap
from .notation.axes import Atom, Axes, substitute
from .notation.expressions import ConfigKey, Definition, Expression, Operation, Words
from .notation.names import Capture, Name
from .notation.rules import Cast, Drop, Pairing, Rule, Term, Tie, first_line
from .programs.computed import Computed
from .unification import Captured, Laid, fill_in, resolve, unify_axes, unify_names


def compose(first: WeightMap, second: WeightMap) -> WeightMap:
    """Return the map that leads through FIRST and then through SECOND.

    A rule that the other map narrows to some of its tensors becomes optional.

    Raises:
        UnsupportedError: two rules meet that no rule can replace.
    """
    before, after = _self_contained(first), _self_contained(second)
    back = [rule.inverse() for rule in after], [rule.inverse() for rule in before]
    rules = [
        *_through(before, after, "one or more"),
        *(rule.inverse() for rule in _through(*back, "more")),
        *_ends(before, after),
        *(rule.inverse() for rule in _ends(*back)),
    ]
    for rule in rules:
        if flaw := rule.flaw():
            raise UnsupportedError(f"{first.name} then {second.name}: `{first_line(rule)}`: {flaw}")
    return WeightMap(tuple(dict.fromkeys(rules)), name=f"{first.name}, then {second.name}")


def _self_contained(table: WeightMap) -> list[Rule]:
    """Return the rules of TABLE, each with those definitions of the whole map that it uses."""
    rules: list[Rule] = []
    for rule in table.rules:
        if isinstance(rule, Pairing):
            if rule.marker == "else":
                raise UnsupportedError(f"`{first_line(rule)}` has no composition: it is an `else`")
            if isinstance(rule, Computed):
                raise UnsupportedError(f"`{first_line(rule)}` has no composition: it is a program")
            if rule.amounts:
                raise UnsupportedError(f"`{first_line(rule)}` has no composition: a named amount")
            rules.append(replace(rule, where=_inlined(table.definitions(rule), rule.sizes)))
        else:
            rules.append(rule)
    return rules


def _inlined(definitions: Sequence[Definition], used: frozenset[str]) -> tuple[Definition, ...]:
    """Return those DEFINITIONS that are USED, none of them referring to another."""
    known: dict[str, Expression] = {}
    found = []
    for definition in definitions:
        value = definition.value
        if not isinstance(value, Words):
            value = _expanded(value, known)
            known |= dict.fromkeys(definition.names, value)
        found += [Definition((name,), value) for name in definition.names if name in used]
    return tuple(found)


def _expanded(value: Expression, known: dict[str, Expression]) -> Expression:
    if isinstance(value, ConfigKey):
        return known.get(value.name, value)
    if isinstance(value, Operation):
        return replace(
            value, left=_expanded(value.left, known), right=_expanded(value.right, known)
        )
    return value


def _through(before: Sequence[Rule], after: Sequence[Rule], terms: str) -> Iterator[Pairing]:
    """Yield the compositions of rules BEFORE, of so many TERMS in the middle, with rules AFTER."""
    hubs = [rule for rule in before if isinstance(rule, Pairing)]
    others = [rule for rule in after if isinstance(rule, Pairing)]
    for hub in hubs:
        if len(hub.right) == 1 and terms == "more":
            continue
        choices = [[spoke for spoke in others if _meets(term, spoke, hub)] for term in hub.right]
        for spokes in product(*choices):
            composed = _composed(hub, spokes)
            if composed is not None:
                yield composed


def _meets(term: Term, spoke: Pairing, hub: Pairing) -> bool:
    """Return whether SPOKE speaks of TERM of HUB, and of no other tensor in the middle."""
    if not any(
        unify_names(term.name, _apart(spoke, "~").left[i].name, {}) for i in range(len(spoke.left))
    ):
        return False
    if len(spoke.left) > 1 and len(hub.right) > 1:
        raise UnsupportedError(
            f"`{first_line(hub)}` then `{first_line(spoke)}`: both have several tensors in the middle"
        )
    return len(spoke.left) == 1


def _apart(rule: Pairing, suffix: str) -> Pairing:
    """Return RULE with all its names followed by SUFFIX, which no name in a text contains."""
    atoms = {name: Atom(name + suffix) for name in rule.atoms if not name.isdigit()}
    names: Captured = {
        capture.name: Name((Capture(capture.name + suffix, capture.deep),))
        for term in (*rule.left, *rule.right)
        for capture in term.name.captures
    }
    return _rewritten(rule, names, dict(atoms))


def _rewritten(rule: Pairing, names: Captured, laid: Laid) -> Pairing:
    def term(old: Term) -> Term:
        axes = None if old.axes is None else tuple(resolve(axis, laid) for axis in old.axes)
        return replace(old, name=fill_in(old.name, names), axes=axes)

    where = [Definition((new,), d.value) for d in rule.where if (new := _renamed(d, names, laid))]
    return Pairing(
        tuple(map(term, rule.left)), tuple(map(term, rule.right)), tuple(where), rule.marker
    )


def _renamed(definition: Definition, names: Captured, laid: Laid) -> str | None:
    """Return what the name of DEFINITION is called now, ``None`` if it is a name no more."""
    [name] = definition.names
    axis = resolve(Atom(name), laid)
    if axis != Atom(name):
        return axis.name if isinstance(axis, Atom) else None
    parts = fill_in(Name((Capture(name),)), names).parts
    return parts[0].name if len(parts) == 1 and isinstance(parts[0], Capture) else None


def _composed(hub: Pairing, spokes: Sequence[Pairing]) -> Pairing | None:
    """Return the rule that leads through HUB and its SPOKES, ``None`` if no tensor does."""
    apart = [_apart(spoke, f"~{at}") for at, spoke in enumerate(spokes)]
    captured: Captured = {}
    laid: Laid = {}
    for term, spoke in zip(hub.right, apart, strict=True):
        if not unify_names(term.name, spoke.left[0].name, captured):
            return None
    try:
        _keep_indices([hub, *apart], captured, laid)
        rule = _laid_out(hub, apart, laid)
        _name_indices([hub, *apart], captured, laid)
    except UnsupportedError as error:
        lines = " then ".join(f"`{first_line(rule)}`" for rule in (hub, *spokes))
        raise UnsupportedError(f"{lines}: {error}") from None
    if not _words_allow(rule, captured):
        return None
    required = any(not part.marker and not _narrowed(part, captured) for part in (hub, *apart))
    marker = "" if required else "?"
    composed = replace(_rewritten(rule, captured, laid), marker=marker)
    return None if _without_words(composed) else _tidied(composed)


def _keep_indices(rules: Sequence[Pairing], captured: Captured, laid: Laid) -> None:
    """Make an axis that is captured the same axis under the name that its capture has now."""
    for name in (name for rule in rules for name in rule.indices):
        parts = fill_in(Name((Capture(name),)), captured).parts
        if len(parts) != 1 or not isinstance(parts[0], Capture) or parts[0].deep:
            raise UnsupportedError(f"the index {name.partition('~')[0]} meets {Name(parts)}")
        if parts[0].name != name:
            laid[name] = Atom(parts[0].name)


def _name_indices(rules: Sequence[Pairing], captured: Captured, laid: Laid) -> None:
    """Name a capture that is an axis as its axis is called now."""
    for name in (name for rule in rules for name in rule.indices):
        axis = resolve(Atom(name), laid)
        [capture] = fill_in(Name((Capture(name),)), captured).parts
        if not isinstance(axis, Atom) or axis.name.isdigit():
            raise UnsupportedError(f"the index {name.partition('~')[0]} meets the axis {axis}")
        if isinstance(capture, Capture) and capture.name != axis.name:
            captured[capture.name] = Name((Capture(axis.name),))


def _laid_out(hub: Pairing, spokes: Sequence[Pairing], laid: Laid) -> Pairing:
    """Return the composed rule before names are filled in; add to LAID what atoms stand for."""
    left, right = hub.left, []
    for spoke, (term, middle) in zip(spokes, _middles(hub, spokes), strict=True):
        others = spoke.right
        if term.axes is None and middle.axes is not None:
            left = tuple(replace(old, axes=middle.axes) for old in left)
        elif term.axes is not None and middle.axes is None:
            others = tuple(replace(old, axes=term.axes) for old in others)
        elif term.axes is not None and middle.axes is not None:
            unify_axes(term.axes, middle.axes, laid)
        if middle.changes:
            if term.changes or len(spokes) > 1 or _cast_count(middle, *left) > 1:
                raise UnsupportedError("both change values")
            left = tuple(replace(old, changes=middle.changes + old.changes) for old in left)
        right += [replace(old, changes=term.changes + old.changes) for old in others]
    where = (*hub.where, *(definition for spoke in spokes for definition in spoke.where))
    return Pairing(left, tuple(right), where)


def _middles(hub: Pairing, spokes: Sequence[Pairing]) -> Iterator[tuple[Term, Term]]:
    """Yield each tensor in the middle as HUB and as its spoke speak of it."""
    for term, spoke in zip(hub.right, spokes, strict=True):
        [middle] = spoke.left
        if hub.reinterprets and spoke.reinterprets and term.changes == middle.changes:
            yield replace(term, changes=()), replace(middle, changes=())  # the same bits
            continue
        plain = hub if spoke.reinterprets else spoke
        if hub.reinterprets != spoke.reinterprets and _has_axes(plain):
            raise UnsupportedError("axes of bytes meet axes of numbers")
        yield term, middle


def _has_axes(rule: Pairing) -> bool:
    return any(term.axes is not None for term in (*rule.left, *rule.right))


def _narrowed(rule: Pairing, captured: Captured) -> bool:
    """Return whether RULE speaks of more tensors than those that are left of it."""
    captures = (capture for term in (*rule.left, *rule.right) for capture in term.name.captures)
    filled = ((capture, fill_in(Name((capture,)), captured).parts) for capture in captures)
    return any(
        len(parts) > 1 or isinstance(parts[0], str) or parts[0].deep != capture.deep
        for capture, parts in filled
    )


def _cast_count(*terms: Term) -> int:
    return sum(isinstance(change, Cast) for term in terms for change in term.changes)


def _words_allow(rule: Pairing, captured: Captured) -> bool:
    """Return whether the literal text that captures stand for is among their words."""
    for definition in rule.where:
        parts = captured.get(definition.names[0], Name(("",))).parts
        if isinstance(definition.value, Words) and definition.names[0] in captured:
            literal = len(parts) == 1 and isinstance(parts[0], str)
            if literal and parts[0] not in definition.value.words:
                return False
    return True


def _without_words(rule: Pairing) -> bool:
    """Return whether a capture of RULE would have to be one of two sets of words that are apart."""
    allowed: dict[str, set[str]] = {}
    for definition in rule.where:
        if isinstance(definition.value, Words):
            words = set(definition.value.words)
            if not words & allowed.setdefault(definition.names[0], words):
                return True
    return False


def _tidied(rule: Pairing) -> Pairing:
    """Return RULE with short names again, and no name defined twice."""
    used = sorted({c.name for t in (*rule.left, *rule.right) for c in t.name.captures} | rule.atoms)
    short: dict[str, str] = {}
    for name in sorted(used, key=lambda name: "~" in name):
        plain, number = name.partition("~")[0], 2
        short[name] = plain
        while list(short.values()).count(short[name]) > 1:
            short[name], number = f"{plain}{number}", number + 1
    deep = {c.name: c.deep for t in (*rule.left, *rule.right) for c in t.name.captures}
    names: Captured = {
        old: Name((Capture(new, deep[old]),))
        for old, new in short.items()
        if old in deep and old != new
    }
    laid = {old: Atom(new) for old, new in short.items() if old != new}

    def term(old: Term) -> Term:
        axes: Axes | None = None if old.axes is None else substitute(old.axes, laid)
        return replace(old, name=fill_in(old.name, names), axes=axes)

    where: dict[str, Definition] = {}
    for definition in rule.where:
        now = short.get(definition.names[0])
        if now and where.setdefault(now, definition).value != definition.value:
            raise UnsupportedError(f"{definition} meets {where[now]}")
    ordered = (Definition((name,), where[name].value) for name in sorted(where))
    return Pairing(
        tuple(map(term, rule.left)), tuple(map(term, rule.right)), tuple(ordered), rule.marker
    )


def _ends(before: Sequence[Rule], after: Sequence[Rule]) -> Iterator[Rule]:
    """Yield the rules BEFORE that lead nowhere, and those AFTER, under the names on the left."""
    yield from (rule for rule in before if isinstance(rule, Drop) and rule.side == "left")
    yield from (rule for rule in before if isinstance(rule, Tie))
    for rule in after:
        if isinstance(rule, Drop) and rule.side == "left":
            yield from (Drop(name, rule.policy) for name in _traced(rule.name, before, rule))
        elif isinstance(rule, Tie):
            for alias in _traced(rule.alias, before, rule):
                if [alias, rule.original] != [rule.alias, *_traced(rule.original, before, rule)]:
                    raise UnsupportedError(f"`{rule}` would tie tensors under other names")


def _traced(name: Name, before: Sequence[Rule], rule: Rule) -> Iterator[Name]:
    """Yield the names on the left of the rules BEFORE that lead to NAME."""
    for hub in (_apart(hub, "~") for hub in before if isinstance(hub, Pairing)):
        for term in hub.right:
            captured: Captured = {}
            if not unify_names(name, term.name, captured):
                continue
            if len(hub.left) > 1 or len(hub.right) > 1:
                raise UnsupportedError(f"`{rule}` meets a part of `{first_line(hub)}`")
            found = fill_in(hub.left[0].name, captured)
            plain = {
                c.name: Name((Capture(c.name.partition("~")[0], c.deep),)) for c in found.captures
            }
            yield fill_in(
                found, {old: new for old, new in plain.items() if new != Name((Capture(old),))}
            )
