"""What a name says: its words, and the concepts that they stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from math import log
from typing import Final

from .families import HOLE
from .synonyms import CONCEPTS, RECOMPUTED

WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
LONGEST: Final = 5  # words in a phrase
FUZZY: Final = 0.6  # credit for words that only look alike


@cache
def phrases() -> Mapping[tuple[str, ...], str]:
    """Return the concept of every phrase."""
    return {
        tuple(phrase.split()): concept
        for concept, row in CONCEPTS.items()
        for phrase in (item.strip() for item in row.split(","))
    }


def words(name: str) -> list[str]:
    """Return the words of NAME in lower case.

    >>> words("h.0.attention.LayerNorm.q_proj")
    ['h', '0', 'attention', 'layer', 'norm', 'q', 'proj']
    """
    return [word.lower() for word in WORD.findall(name.replace(HOLE, " "))]


@cache
def concepts(name: str) -> tuple[str, ...]:
    """Return the concepts of NAME, and the words that stand for none; the longest phrases first.

    >>> concepts("attn.q_proj.weight")
    ('attention', 'query', 'weight')
    """
    known, spoken, found, at = phrases(), words(name), [], 0
    while at < len(spoken):
        for length in range(min(LONGEST, len(spoken) - at), 0, -1):
            concept = known.get(tuple(spoken[at : at + length]))
            if concept:
                break
        found.append(concept or spoken[at])
        at += length
    return tuple(found)


def is_recomputed(name: str) -> bool:
    """Say whether NAME is that of a buffer that models compute themselves.

    >>> is_recomputed("rotary_emb.inv_freq")
    True
    """
    spoken = " ".join(words(name))
    return any(spoken.endswith(phrase) for phrase in RECOMPUTED)


def rarity(names: Iterable[str]) -> dict[str, float]:
    """Return for every concept how much it tells: little if most of NAMES have it."""
    rows = [set(concepts(name)) for name in names]
    counted = Counter(concept for row in rows for concept in row)
    return {concept: 0.1 + log(len(rows) / count) for concept, count in counted.items()}


@cache
def alike(one: str, other: str) -> float:
    """Return how alike two words are, from 0 to 1: the same, an abbreviation, or neither.

    >>> alike("attn", "attention") > 0, alike("gate", "down") > 0
    (True, False)
    """
    if one == other:
        return 1.0
    short, long = sorted((one, other), key=len)
    if len(short) < 3 or short[0] != long[0] or short.isdigit():
        return 0.0
    rest = iter(long)
    return FUZZY if all(letter in rest for letter in short) else 0.0


def likeness(one: tuple[str, ...], other: tuple[str, ...], weight: Mapping[str, float]) -> float:
    """Return how much two lists of concepts share, by WEIGHT, from 0 to 1."""
    mine, theirs = set(one), set(other)
    shared = sum(weight.get(concept, 1.0) for concept in mine & theirs)
    left, right = mine - theirs, theirs - mine
    for concept in sorted(left):
        best = max(right, key=lambda c: (alike(concept, c), c), default="")
        credit = alike(concept, best) if best else 0.0
        if credit:
            shared += credit * min(weight.get(concept, 1.0), weight.get(best, 1.0))
            right.discard(best)
    total = sum(weight.get(concept, 1.0) for concept in mine | theirs)
    return shared / total if total else 0.0
