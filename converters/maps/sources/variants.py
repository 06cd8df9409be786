"""The table of a family as one checkpoint needs it: behind a prefix, in an older spelling, by stages.

A table speaks of the bare model, so that every rule of it must hold. Where transformers puts a head
on a model it puts ``bert.`` before the names of the rest; the table then says the same of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ...models import Family
from ..binding.weightmap import WeightMap
from ..notation.expressions import Definition, Literal
from ..notation.names import Name, parse_name
from ..notation.rules import Drop, Pairing, Rule, Term, Tie

STAGE: Final = "{stage}"


def table_of(family: Family) -> WeightMap:
    """Return the table of FAMILY, a row or what ``known_family`` found, with its names as they are.

    >>> from weighbridge.converters.models import FAMILIES
    >>> print(table_of(FAMILIES["bert"]).rules[0])
    bert.embeddings.word_embeddings.weight [words hidden] <-> same
    >>> print(table_of(FAMILIES["bert"]._replace(prefix="")).rules[0])
    embeddings.word_embeddings.weight [words hidden] <-> same
    """
    table = WeightMap.load(family.map)
    rules = (each for rule in table.rules for each in staged(rule, family))
    return replace(table, rules=tuple(varied(rule, family) for rule in rules))


def staged(rule: Rule, family: Family) -> Iterator[Rule]:
    """Yield RULE once for every stage of FAMILY that it speaks of, with what is known of that."""
    if not (family.stages and isinstance(rule, Pairing) and STAGE in str(rule.left[0].name)):
        yield rule
        return
    for number, stage in enumerate(family.stages):
        sides = ([in_stage(term, number) for term in side] for side in (rule.left, rule.right))
        left, right = map(tuple, sides)
        known = {"layer": stage.layers, "channels": stage.width, "part": stage.parts}
        where = (Definition((name,), Literal(size)) for name, size in known.items() if size)
        whole = Pairing(left, right, rule.where, rule.marker)
        yield replace(
            whole, where=(*rule.where, *(it for it in where if it.names[0] in whole.sizes))
        )


def in_stage(term: Term, number: int) -> Term:
    """Return TERM with the NUMBER of a stage in its name."""
    return replace(term, name=parse_name(str(term.name).replace(STAGE, str(number))))


def varied(rule: Rule, family: Family) -> Rule:
    """Return RULE with the prefix and the spelling of FAMILY."""
    if isinstance(rule, Tie):
        return Tie(torch_name(rule.alias, family), torch_name(rule.original, family))
    if isinstance(rule, Drop):
        return replace(rule, name=torch_name(rule.name, family)) if rule.side == "left" else rule
    right = rule.right
    if family.keeps_prefix:
        right = tuple(replace(term, name=behind(term.name, family)) for term in right)
    left = tuple(replace(term, name=torch_name(term.name, family)) for term in rule.left)
    return Pairing(left, right, rule.where, rule.marker)


def torch_name(name: Name, family: Family) -> Name:
    """Return the torch NAME of a table behind FAMILY's prefix and in its spelling."""
    text = str(behind(name, family))
    for now, once in family.spellings:
        text = text.replace(now, once)
    return parse_name(text)


def behind(name: Name, family: Family) -> Name:
    """Return NAME behind FAMILY's prefix, unless it belongs to a head."""
    if not family.prefix or family.in_head(str(name)):
        return name
    return parse_name(f"{family.prefix}{name}")
