"""Say a number as an expression of the configuration, where one says it and no other does.

Candidates are single keys first, then a count times a width, then quotients and sums. Keys of a
part, such as ``vision_config``, speak only of tensors whose names mention the part. Which of several
candidates is meant, ``relearning`` finds out by asking the class again with another configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...notation.expressions import ConfigKey, Expression, Literal, Operation

NO_SIZE: Final = re.compile(
    r"token|version|position|seed|window|per_tok|top_?k|_id$|_ids$|eps|period|offset|context|max_|top_"
)
LAYERS: Final = frozenset({"layers", "layer", "blocks", "block", "depth"})
EXPERTS: Final = frozenset({"experts", "expert"})
SLOTS: Final = {
    **dict.fromkeys(("layers", "layer", "h", "blocks", "block", "resblocks"), LAYERS),
    **dict.fromkeys(("experts", "expert"), EXPERTS),
}  # the word before an index -> the words of the key that counts it
PARTS: Final = {
    "vision": ("vision", "visual", "image"), "audio": ("audio", "speech"), "text": (), "llm": (),
}  # fmt: skip


class Key(NamedTuple):
    """A key of the configuration that holds a positive integer."""

    name: str
    value: int

    @property
    def words(self) -> frozenset[str]:
        """The words of its last part."""
        return frozenset(self.name.rpartition(".")[2].split("_"))

    @property
    def counts(self) -> bool:
        """Whether it looks like a number of things."""
        return bool(self.words & {"num", "n", "heads", "groups", "experts"})


def keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[Key]:
    """Yield the keys that hold positive integers, nested ones dotted.

    >>> [key.name for key in keys({"a": 3, "text_config": {"b": 2}, "c": True})]
    ['a', 'text_config.b']
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from keys(value, f"{prefix}{name}.")
        elif type(value) is int and value > 0 and re.fullmatch(r"[^\W\d]\w*", name):
            yield Key(f"{prefix}{name}", value)


class Speaker:
    """Finds expressions in one configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.keys = list(keys(config))

    def count(self, value: int, before: str, names: Iterable[str]) -> Expression | None:
        """Return what counts the indices that follow the segment BEFORE, if there are VALUE.

        >>> str(Speaker({"num_hidden_layers": 4, "num_heads": 4}).count(4, "layers", ["layers.0.w"]))
        'num_hidden_layers'
        """
        wanted = SLOTS.get(before, frozenset())
        found = [key for key in self.near(names) if key.value == value and key.words & wanted]
        plain = min(
            found, key=lambda key: (key.name.count("."), "num" not in key.name), default=None
        )
        return ConfigKey(plain.name) if plain else None

    def sizes(self, value: int, names: Iterable[str]) -> list[list[Expression]]:
        """Return what comes to VALUE, a size within the tensors called NAMES, the plainest first.

        >>> [[str(e) for e in level] for level in Speaker({"n_heads": 4, "dim": 8}).sizes(32, "q")]
        [[], ['n_heads * dim'], [], []]
        """
        usable = [key for key in self.near(names) if not NO_SIZE.search(key.name)]
        usable = [key for key in usable if not key.words & LAYERS and key.value > 1]
        levels = (_single, _products, _quotients, _sums)
        return [[found for found, total in level(usable) if total == value] for level in levels]

    def near(self, names: Iterable[str]) -> list[Key]:
        """Return the keys that may speak of NAMES; those of the text first where there are such."""
        text = " ".join(names).lower()
        found = []
        for key in self.keys:
            part = key.name.split(".")[0].removesuffix("_config") if "." in key.name else ""
            marks = PARTS.get(part, ())
            if not marks or any(mark in text for mark in marks):
                found.append(key)
        inner = [key for key in found if any(mark in text for mark in _marks(key.name))]
        return inner or found


def _marks(name: str) -> tuple[str, ...]:
    return (
        PARTS.get(name.split(".", maxsplit=1)[0].removesuffix("_config"), ()) if "." in name else ()
    )


Candidate = tuple[Expression, int]


def _single(usable: list[Key]) -> Iterator[Candidate]:
    for key in usable:
        yield ConfigKey(key.name), key.value


def _pairs(usable: list[Key]) -> Iterator[tuple[Key, Key]]:
    return ((a, b) for a in usable if a.counts for b in usable if not b.counts)


def _products(usable: list[Key]) -> Iterator[Candidate]:
    for a, b in _pairs(usable):
        yield Operation("*", ConfigKey(a.name), ConfigKey(b.name)), a.value * b.value
    for key in usable:
        if not key.counts:
            yield Operation("*", Literal(2), ConfigKey(key.name)), 2 * key.value


def _quotients(usable: list[Key]) -> Iterator[Candidate]:
    for a, b in _pairs(usable):
        if b.value % a.value == 0:
            yield Operation("//", ConfigKey(b.name), ConfigKey(a.name)), b.value // a.value


def _sums(usable: list[Key]) -> Iterator[Candidate]:
    wide = [key for key in usable if not key.counts]
    for at, a in enumerate(wide):
        for b in wide[at + 1 :]:
            yield Operation("+", ConfigKey(a.name), ConfigKey(b.name)), a.value + b.value


def keys_in(expression: Expression) -> set[str]:
    """Return the keys that EXPRESSION names."""
    if isinstance(expression, ConfigKey):
        return {expression.name}
    if isinstance(expression, Operation):
        return keys_in(expression.left) | keys_in(expression.right)
    return set()
