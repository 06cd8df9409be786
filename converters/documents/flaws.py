"""What is wrong with a parsed document, each flaw with the keys that lead to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ...errors import BadInputError
from .kinds import Kind

DEPTH, DIGITS = 64, 100  # real files: 12 levels, and 31 digits (a length that means "no limit")
TOO_DEEP: Final = f"nested more than {DEPTH} levels deep"
QUOTED: Final = 5  # keys named twice in one object
MOST: Final = 1_000  # flaws of one document; the message shows fewer


@dataclass(frozen=True)
class Flaw:
    """Stands in a parsed document for a value that is refused."""

    what: str


def refuse(found: Iterable[str], where: object, kind: Kind) -> None:
    """Raise BadInputError if anything is FOUND wrong with the document from WHERE."""
    problems = list(islice(found, MOST))
    if len(problems) == 1:
        raise BadInputError(f"{where}: {problems[0]}; {kind.todo}")
    if problems:
        raise BadInputError(f"{where}: {len(problems):,} problems; {kind.todo}", problems)


def flaws(value: Any, kind: Kind) -> Iterator[str]:
    """Yield what is wrong with VALUE, the whole of a document."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        keys, item = waiting.pop()
        place = f"{key_path(keys)}: " if keys else ""
        inner = children(item)
        if len(keys) >= DEPTH and inner is not None:
            yield place + TOO_DEEP
        elif (what := _flaw(item, kind)) is not None:
            yield place + what
        elif inner is not None:
            names = item if isinstance(item, dict) else ()
            yield from (place + flaw for key in names if (flaw := _flaw_of_key(key)))
            waiting += [((*keys, key), child) for key, child in reversed(inner)]


def children(value: Any) -> list[tuple[str, Any]] | None:
    """Return what is in VALUE, each with its part of a key path; ``None`` if it can hold nothing."""
    if isinstance(value, dict):
        return [(f".{key}", child) for key, child in value.items()]
    if isinstance(value, list):
        return [(f"[{at}]", child) for at, child in enumerate(value)]
    return None


def key_path(keys: tuple[str, ...]) -> str:
    """Return KEYS as one word.

    >>> key_path((".rope", ".factors", "[3]"))
    'rope.factors[3]'
    """
    return "".join(keys).removeprefix(".")


def depth_of(value: Any) -> int:
    """Return how deeply VALUE is nested, found without recursion; it counts to ``DEPTH`` and one."""
    level, depth = [value], 0
    while level := [it for it in level if type(it) is dict or type(it) is list]:
        depth += 1
        if depth > DEPTH:
            break
        level = [child for it in level for child in (it.values() if type(it) is dict else it)]
    return depth


def _flaw(value: Any, kind: Kind) -> str | None:
    """Return what is wrong with VALUE itself, whatever it holds."""
    if isinstance(value, Flaw):
        return value.what
    if isinstance(value, str):
        return _flaw_of_text(value)
    if isinstance(value, int) and abs(value) >= 10**DIGITS:
        return "a number of too many digits"
    if isinstance(value, float) and not math.isfinite(value):
        meant = ("NaN" if math.isnan(value) else "Infinity") in kind.constants
        return None if meant else f"{value} is not a number"
    return None


def _flaw_of_key(key: Any) -> str | None:
    if isinstance(key, str):
        return _flaw_of_text(key)
    return f"the key {key} is {name_of(key)}, not a text; put it in quotes"


def _flaw_of_text(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{text[:200]!a} holds half a character, which no file can hold"
    return None


NAMES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def name_of(value: Any) -> str:
    """Return what VALUE is called in a document.

    >>> name_of([]), name_of(None)
    ('a list', 'null')
    """
    return NAMES.get(type(value), f"a {type(value).__name__}")


def shown(value: Any) -> str:
    """Return VALUE as a message quotes it."""
    return str(value)[:200] if isinstance(value, str | int | float) else name_of(value)


def named_twice(pairs: Iterable[tuple[Any, Any]]) -> Flaw:
    """Return the flaw that keys of PAIRS are there twice; at least one is."""
    seen: dict[Any, Any] = {}
    twice = []
    for key, value in pairs:
        if key in seen:
            twice.append(f"{shown(key)} is named twice, for {shown(seen[key])} and {shown(value)}")
        seen[key] = value
    more = [f"and {len(twice) - QUOTED:,} more"] if len(twice) > QUOTED else []
    return Flaw("; ".join([*twice[:QUOTED], *more]))
