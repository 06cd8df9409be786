"""What a translation of a config did, key by key, and how it is undone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

Config = dict[str, Any]
ABSENT: Final = object()


class Translation(NamedTuple):
    """A config and what was done to it; keys inside a part are dotted: ``text_config.rope_theta``.

    Attributes:
        config: the result; the config that was given is not changed.
        added: keys put in, with their values.
        changed: key -> (before, after).
        removed: keys taken out, with their values.
        notes: what the class that reads the result does not do as the config says.
    """

    config: Config
    added: Config
    changed: dict[str, tuple[Any, Any]]
    removed: Config
    notes: tuple[str, ...] = ()

    def recorded(self) -> dict[str, Any]:
        """Return what a manifest keeps so that the translation can be undone."""
        return {"added": self.added, "changed": self.changed, "removed": self.removed}


def difference(
    before: Mapping[str, Any], after: Config, notes: tuple[str, ...] = ()
) -> Translation:
    """Return the Translation that leads from BEFORE to AFTER.

    >>> difference({"a": 1, "text_config": {}}, {"a": 3, "text_config": {"c": 4}})[1:3]
    ({'text_config.c': 4}, {'a': (1, 3)})
    """
    old, new = dict(leaves(before, after)), dict(leaves(after, before))
    return Translation(
        config=after,
        added={key: new[key] for key in new if key not in old},
        changed={key: (old[key], new[key]) for key in new if key in old and old[key] != new[key]},
        removed={key: old[key] for key in old if key not in new},
        notes=notes,
    )


def leaves(
    config: Mapping[str, Any], other: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a part is entered where it is one on both sides."""
    for key, value in config.items():
        counterpart = other.get(key)
        if isinstance(value, Mapping) and isinstance(counterpart, Mapping) and is_part(key):
            yield from leaves(value, counterpart, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def is_part(key: str) -> bool:
    """Say whether KEY names a config inside a config, such as ``text_config``."""
    return key.endswith("_config") and "." not in key


def undone(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> Config:
    """Return CONFIG without what RECORDED says was done; what was edited since then stays.

    >>> undone({"a": 3, "c": 4}, {"added": {"c": 4}, "changed": {"a": (1, 3)}, "removed": {"d": 5}})
    {'a': 1, 'd': 5}
    """
    result = copy.deepcopy(dict(config))
    for key, value in (recorded.get("added") or {}).items():
        place, name = holder(result, key)
        if place.get(name, ABSENT) == value:
            del place[name]
    for key, (before, after) in (recorded.get("changed") or {}).items():
        place, name = holder(result, key)
        if place.get(name, ABSENT) == after:
            place[name] = copy.deepcopy(before)
    for key, value in (recorded.get("removed") or {}).items():
        place, name = holder(result, key)
        place.setdefault(name, copy.deepcopy(value))
    return result


def holder(config: Config, key: str) -> tuple[Config, str]:
    """Return the dict that holds the dotted KEY, and its name there."""
    head, dot, rest = key.partition(".")
    part = config.get(head)
    if dot and is_part(head) and isinstance(part, dict):
        return holder(part, rest)
    return config, key
