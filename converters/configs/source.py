"""A config as its rows read it: what is written, then what transformers' own class fills in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .translation import ABSENT


@dataclass(frozen=True)
class Source:
    """A config, or the part of one that a class reads.

    Attributes:
        written: the keys in the file.
        known: transformers' config object with its defaults; ``None`` where it knows no such type.
    """

    written: Mapping[str, Any]
    known: Any = None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of KEY; aliases and defaults are transformers' own."""
        found = self.find(key)
        return default if found is ABSENT or found is None else found

    def find(self, key: str) -> Any:
        """Return the value of KEY, ``ABSENT`` where neither side has it."""
        if self.known is not None:
            with suppress(Exception):  # no such attribute, or one that differs by layer
                return plain(getattr(self.known, key))
        return self.written.get(key, ABSENT)

    def rope(self, layer: str = "full_attention") -> dict[str, Any]:
        """Return the rotary parameters, those of the LAYER type where types differ."""
        found = self.get("rope_parameters", {})
        if any(isinstance(value, dict) for value in found.values()):
            return dict(found.get(layer) or next(v for v in found.values() if isinstance(v, dict)))
        return dict(found)

    def part(self, key: str) -> Source:
        """Return the config inside this one that KEY names, dotted for one inside another."""
        if not key:
            return self
        head, _, rest = key.partition(".")
        return Source(self.written.get(head) or {}, getattr(self.known, head, None)).part(rest)

    def layers(self, kind: str) -> list[bool]:
        """Return for every layer whether its type is KIND."""
        return [layer == kind for layer in self.get("layer_types", [])]


def plain(value: Any) -> Any:
    """Return VALUE as JSON would give it back, ``ABSENT`` where JSON has no form for it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else ABSENT
