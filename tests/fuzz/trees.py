"""Spoil JSON, YAML and TOML as trees: any node becomes anything, keys come twice, depth and size explode."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from .drawn import Chance

Path = tuple[Any, ...]


class Raw(str):
    """Text that goes into the file as it is."""

    __slots__ = ()


DEEP = Raw("[" * 5_000 + "]" * 5_000)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 100_000, 2**31, 2**31 - 1, -(2**31), 2**53 + 1),
    *(2**63, 2**64, 10**30, -(2**63), 0.0, -0.0, 1.5, 1e308, 5e-324, -1e-9),
    *(Raw("1e400"), Raw("9" * 5_000), Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("01")),
    *("", " ", "a", "x" * 300, "x" * 5_000, "..", "../..", "../away/kept.txt", "a/b", "."),
    *("con\x00trol", "\u2028", "💥", "[red]", "[/]", "{0}", "%s", "$HOME", "-", "--force", "null"),
    *(Raw('"\\ud800"'), Raw('"\\u0000"'), Raw("'single'"), Raw("/* note */ 1"), Raw("")),
    *([], [None], [[]], [0], [-1], ["a"], ["a", 1], [1] * 2_000, {}, {"a": {}}, {"": ""}),
    *(DEEP, Raw('{"a":' * 2_000 + "1" + "}" * 2_000), Raw("[" * 2_000)),
)


def places(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every node of TREE."""
    yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


def spoiled_tree(chance: Chance, tree: Any, drawn: tuple[Any, ...] = ()) -> Any:
    """Return a copy of TREE with one to three nodes spoiled; DRAWN are more odd values."""
    made = json.loads(json.dumps(tree))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = list(places(made))
        path = chance.choice(paths[1:] or paths)
        if chance.random() < 0.02 or not path:
            made = odd(chance, made, drawn)
            continue
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        spoil(chance, parent, path[-1], drawn)
    return made


def spoil(chance: Chance, parent: Any, key: Any, drawn: tuple[Any, ...]) -> None:
    """Spoil what PARENT holds under KEY."""
    what = chance.random()
    if what < 0.12:
        del parent[key]
    elif what < 0.22 and isinstance(parent, dict):
        parent[odd_key(chance, key)] = parent.pop(key)
    elif what < 0.3 and isinstance(parent, dict):
        parent[chance.choice(list(parent))] = copy.deepcopy(parent[key])
    elif what < 0.35 and isinstance(parent, dict):
        parent[Raw(json.dumps(str(key)))] = odd(chance, parent[key], drawn)  # the same key again
    elif what < 0.4 and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    else:
        parent[key] = odd(chance, parent[key], drawn)


def odd_key(chance: Chance, key: str) -> str:
    """Return another key than KEY."""
    return str(
        chance.choice((f"{key}x", str(key)[:-1], str(key).upper(), "", "x" * 300, f"{key}\x00"))
    )


def odd(chance: Chance, value: Any, drawn: tuple[Any, ...]) -> Any:
    """Return something else than VALUE: of another type, near it, or odd."""
    what = chance.random()
    if what < 0.15 and isinstance(value, int | float) and not isinstance(value, bool):
        return chance.choice((value + 1, value - 1, -value, value * 2, value * 1_000, value / 3))
    if what < 0.15 and isinstance(value, str):
        return chance.choice((f"{value}x", value[:-1], value.upper(), value * 100, f"../{value}"))
    if what < 0.25:
        return chance.choice(([value], {"a": value}, str(value), [value, value], not value))
    return copy.deepcopy(chance.choice(drawn if what < 0.4 and drawn else ODD))


def written(tree: Any) -> str:
    """Return TREE as JSON text, raw parts as they are, keys as often as they stand there."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, dict):
        pairs = (
            f"{key if isinstance(key, Raw) else json.dumps(str(key))}: {written(value)}"
            for key, value in tree.items()
        )
        return "{" + ", ".join(pairs) + "}"
    if isinstance(tree, list | tuple):
        return "[" + ", ".join(map(written, tree)) + "]"
    return json.dumps(tree)
