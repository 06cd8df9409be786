"""Tensor names with captures: ``encoder.layer.{n}.attention.{part}.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

Captures: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Capture:
    """A variable part of a name.

    ``{n}`` stands for one segment between dots or for a part of one, ``{name**}`` or ``{**}`` for
    one segment or more. A capture that is an axis of the rule stands for an index 0, 1, 2 ...
    """

    name: str
    deep: bool = False

    def __str__(self) -> str:
        return f"{{{self.name}{'**' * self.deep}}}"


@dataclass(frozen=True)
class Name:
    """A tensor's name: literal text and captures in turn."""

    parts: tuple[str | Capture, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    @cached_property
    def captures(self) -> tuple[Capture, ...]:
        """The captures in the order of their first appearance."""
        return tuple(dict.fromkeys(part for part in self.parts if isinstance(part, Capture)))

    @property
    def literal(self) -> str:
        """The longest literal part; a name without it cannot match."""
        return max((part for part in self.parts if isinstance(part, str)), key=len, default="")

    def fill(self, captures: Captures) -> str:
        """Return the name with its captures filled in.

        >>> parse_name("layers.{n}.weight").fill({"n": "3"})
        'layers.3.weight'
        """
        return "".join(
            captures[part.name] if isinstance(part, Capture) else part for part in self.parts
        )

    def flaw(self) -> str | None:
        """Say why this name could not be read back from a tensor's name; ``None`` if it could."""
        pairs = zip(self.parts, self.parts[1:], strict=False)
        if any(isinstance(a, Capture) and isinstance(b, Capture) for a, b in pairs):
            return f"{self}: two captures must have text between them"
        if sum(capture.deep for capture in self.captures) > 1:
            return f"{self}: only one capture may be of any depth"
        if len({capture.name for capture in self.captures}) < len(self.captures):
            return f"{self}: a capture is either of one segment or of any depth"
        return None


CAPTURE = re.compile(r"\{([A-Za-z]\w*)?(\*\*)?\}")


def parse_name(text: str) -> Name:
    """Return the name that TEXT spells.

    Raises:
        ValueError: a brace that opens no capture.

    >>> parse_name("vision_tower.{**}").captures
    (Capture(name='', deep=True),)
    """
    parts: list[str | Capture] = []
    end = 0
    for match in CAPTURE.finditer(text):
        if not (match[1] or match[2]):
            break
        parts += [text[end : match.start()], Capture(match[1] or "", bool(match[2]))]
        end = match.end()
    parts.append(text[end:])
    if any(isinstance(part, str) and set(part) & set("{}") for part in parts):
        raise ValueError(f"{text}: a capture is written {{n}}, {{n**}} or {{**}}")
    return Name(tuple(part for part in parts if part))


@lru_cache(maxsize=4096)
def regex(name: Name, indices: Set[str] = frozenset()) -> re.Pattern[str]:
    """Return what matches NAME, with one group per capture, in the order of ``Name.captures``.

    The captures called INDICES match an index only.

    >>> regex(parse_name("experts.{e}.w"), frozenset("e")).fullmatch("experts.07.w") is None
    True
    """
    return re.compile("".join(_expressions(name, indices)))


def _expressions(name: Name, indices: Set[str]) -> Iterator[str]:
    groups: dict[str, int] = {}
    for part in name.parts:
        if isinstance(part, str):
            yield re.escape(part)
        elif part.name in groups:
            yield f"(?:\\{groups[part.name]})"
        else:
            groups[part.name] = len(groups) + 1
            yield f"({'.+' if part.deep else '0|[1-9][0-9]*' if part.name in indices else '[^.]+'})"


def match(name: Name, text: str, indices: Set[str] = frozenset()) -> dict[str, str] | None:
    """Return the captures with which NAME spells TEXT, ``None`` if there are none.

    >>> match(parse_name("embeddings.{part}_embeddings.weight"), "embeddings.word_embeddings.weight")
    {'part': 'word'}
    """
    found = regex(name, indices).fullmatch(text)
    if found is None:
        return None
    return {capture.name: text for capture, text in zip(name.captures, found.groups(), strict=True)}
