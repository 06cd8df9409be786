"""Say a number as an expression of the configuration, where one says it and no other does.

Candidates are single keys first, then a count times a width, then quotients and sums. Keys of a
part, such as ``vision_config``, speak only of tensors whose names mention the part. Where several
candidates come to the number, the one that shares most words with the names wins; if two are equal
in that, the number stays a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..expressions import ConfigKey, Expression, Literal, Operation

NO_SIZE: Final = re.compile(
    r"token|version|position|seed|window|per_tok|top_?k|_id$|_ids$|eps|period|offset|context"
)
LAYERS: Final = frozenset({"layers", "layer", "blocks", "block", "depth"})
EXPERTS: Final = frozenset({"experts", "expert"})
SLOTS: Final = {
    **dict.fromkeys(("layers", "layer", "h", "blocks", "block", "resblocks"), LAYERS),
    **dict.fromkeys(("experts", "expert"), EXPERTS),
}  # the word before an index -> the words of the key that counts it
LIKE: Final = {
    "attn": "attention", "ffn": "intermediate", "mlp": "intermediate", "q": "attention",
    "k": "key", "v": "value", "kv": "key", "moe": "expert", "experts": "expert",
    "linear": "linear", "mixer": "mamba", "ssm": "mamba", "conv": "conv", "lora": "lora",
}  # fmt: skip
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


Check = Callable[[Expression], bool]


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
        return self.best([(ConfigKey(key.name), key.words) for key in found], names)

    def size(self, value: int, names: Iterable[str]) -> Expression | None:
        """Return what comes to VALUE, a size within the tensors called NAMES.

        >>> str(Speaker({"heads": 4, "kv_heads": 2, "head_dim": 8}).size(32, ["q"]))
        'heads * head_dim'
        """
        names = list(names)
        usable = [key for key in self.near(names) if not NO_SIZE.search(key.name)]
        usable = [key for key in usable if not key.words & LAYERS and key.value > 1]
        for candidates in (_single, _products, _quotients, _sums):
            found = [
                (expression, words) for expression, total, words in candidates(usable) if total == value
            ]
            if found:
                return self.best(found, names)
        return None

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

    def best(
        self, found: list[tuple[Expression, frozenset[str]]], names: Iterable[str]
    ) -> Expression | None:
        """Return the one that shares most words with NAMES, ``None`` if there is not one such."""
        if len(found) == 1:
            return found[0][0]
        said = {word for name in names for word in re.split(r"[._]", name.lower())}
        said |= {LIKE[word] for word in said if word in LIKE}
        ranked = sorted(((len(words & said), -at) for at, (_, words) in enumerate(found)), reverse=True)
        if len(ranked) < 2 or ranked[0][0] == ranked[1][0]:
            return None
        return found[-ranked[0][1]][0]


def _marks(name: str) -> tuple[str, ...]:
    return PARTS.get(name.split(".")[0].removesuffix("_config"), ()) if "." in name else ()


Candidate = tuple[Expression, int, frozenset[str]]


def _single(usable: list[Key]) -> Iterator[Candidate]:
    for key in usable:
        yield ConfigKey(key.name), key.value, key.words


def _pairs(usable: list[Key]) -> Iterator[tuple[Key, Key]]:
    return ((a, b) for a in usable if a.counts for b in usable if not b.counts)


def _products(usable: list[Key]) -> Iterator[Candidate]:
    for a, b in _pairs(usable):
        yield Operation("*", ConfigKey(a.name), ConfigKey(b.name)), a.value * b.value, a.words | b.words
    for key in usable:
        if not key.counts:
            yield Operation("*", Literal(2), ConfigKey(key.name)), 2 * key.value, key.words


def _quotients(usable: list[Key]) -> Iterator[Candidate]:
    for a, b in _pairs(usable):
        if b.value % a.value == 0:
            found = Operation("//", ConfigKey(b.name), ConfigKey(a.name))
            yield found, b.value // a.value, a.words | b.words


def _sums(usable: list[Key]) -> Iterator[Candidate]:
    wide = [key for key in usable if not key.counts]
    for at, a in enumerate(wide):
        for b in wide[at + 1 :]:
            words = a.words | b.words
            yield Operation("+", ConfigKey(a.name), ConfigKey(b.name)), a.value + b.value, words
