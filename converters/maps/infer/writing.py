"""From links to the text of a map: repeated blocks folded, and beside every rule how it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from .families import HOLE, NUMBER
from .links import Link, Term, weakest

CAPTURES: Final = ("n", "m", "k", "i", "j")
PROOFS: Final = {
    "value": "by value",
    "outputs": "by outputs",
    "shape": "by shape",
    "guess": "guess",
}


def write(links: Sequence[Link], others: Sequence[str] = (), *, fold: bool = True) -> str:
    """Return the map that LINKS make.

    Args:
        links: one for each instance of a rule.
        others: further rules, as text.
        fold: whether instances that differ by indices only become one rule.
    """
    rules = [folded for group in groups(links) for folded in folds(group, fold=fold)]
    return "\n".join(["weighbridge map 1", *map(rule_text, rules), *others]) + "\n"


def groups(links: Iterable[Link]) -> list[list[Link]]:
    """Return LINKS in groups that are alike but for numbers in names."""
    found: dict[object, list[Link]] = {}
    for link in links:
        names = tuple(NUMBER.sub(HOLE, term.name) for term in (*link.left, *link.right))
        axes = tuple(term.axes for term in (*link.left, *link.right))
        key = (names, len(link.left), axes, link.where, link.change)
        found.setdefault(key, []).append(link)
    return list(found.values())


def folds(group: Sequence[Link], *, fold: bool) -> list[Link]:
    """Return one link with captures for a GROUP, or the group where that would say something else."""
    if len(group) == 1 or not fold:
        return list(group)
    rows = [[NUMBER.findall(term.name) for term in (*link.left, *link.right)] for link in group]
    columns: dict[tuple[str, ...], str] = {}
    captures = iter(CAPTURES)
    for term in range(len(rows[0])):
        for at in range(len(rows[0][term])):
            column = tuple(row[term][at] for row in rows)
            if len(set(column)) > 1 and column not in columns:
                columns[column] = next(captures, "")
    named = [
        [
            columns.get(tuple(row[term][at] for row in rows), rows[0][term][at])
            for at in range(len(rows[0][term]))
        ]
        for term in range(len(rows[0]))
    ]
    used = [{name for name in term if name in columns.values()} for term in named]
    if "" in columns.values() or any(names != set(columns.values()) for names in used):
        return list(group)
    return [with_captures(together(group), named, set(columns.values()))]


def together(group: Sequence[Link]) -> Link:
    """Return the first link of GROUP with the weakest proof in it, which is the whole rule's."""
    proofs = Counter(link.proof for link in group)
    weak = next(link for link in group if link.proof == weakest(list(proofs)))
    if len(proofs) == 1:
        return group[0]
    known = ", ".join(f"{count} of {len(group)} by {proof}" for proof, count in proofs.items())
    return replace(group[0], proof=weak.proof, note=f"{weak.note} ({known})".strip())


def with_captures(link: Link, named: Sequence[Sequence[str]], captures: set[str]) -> Link:
    """Return LINK with the numbers of its names replaced by what NAMED says."""
    terms = [
        Term(replaced(term.name, values, captures), term.axes)
        for term, values in zip((*link.left, *link.right), named, strict=True)
    ]
    split = len(link.left)
    return Link(
        tuple(terms[:split]), tuple(terms[split:]), link.where, link.change, link.proof, link.note
    )


def replaced(name: str, values: Sequence[str], captures: set[str]) -> str:
    """Return NAME with its numbers replaced by VALUES, captures in braces."""
    rest = iter(values)

    def put(_: object) -> str:
        value = next(rest)
        return f"{{{value}}}" if value in captures else value

    return NUMBER.sub(put, name)


def rule_text(link: Link) -> str:
    """Return LINK as a rule of the notation, and how it is known as a comment."""
    sides = [
        ", ".join(term.text(plain=link.plain) for term in side) for side in (link.left, link.right)
    ]
    rule = f"{sides[0]} <-> {sides[1]}{' ' + link.change if link.change else ''}"
    note = f"{PROOFS[link.proof]}{': ' + link.note if link.note else ''}"
    if link.where:
        return f"{rule}\n    where {', '.join(link.where)}  # {note}"
    return f"{rule}  # {note}"
