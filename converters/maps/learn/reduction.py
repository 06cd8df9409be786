"""Leave out most experts of a large mixture: they are alike, and a few show what is done to all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...checkpoints.base import Header

FEWEST: Final = 32  # experts that are worth it
KEPT: Final = 12
EXPERT: Final = re.compile(r"(.*experts?\.)(0|[1-9][0-9]*)(\..*)")


class Reduced(NamedTuple):
    """A model with few experts.

    Attributes:
        config: with their number.
        headers: without the tensors of the others.
    """

    config: dict[str, Any]
    headers: dict[str, Header]


def reduced(config: Mapping[str, Any], headers: Mapping[str, Header]) -> Reduced | None:
    """Return CONFIG and HEADERS with few experts, ``None`` where that cannot be done safely.

    Every family of experts must run from 0 without gaps to a number that a key of the configuration
    with ``expert`` in its name gives, and be of equal tensors.

    >>> headers = {f"mlp.experts.{e}.w": Header("F32", (2, 3)) for e in range(64)}
    >>> small = reduced({"num_experts": 64, "hidden_size": 64}, headers)
    >>> small.config, len(small.headers)
    ({'num_experts': 4, 'hidden_size': 64}, 4)
    """
    counts = {value for value in expert_counts(config) if value >= FEWEST}
    if not counts:
        return None
    families: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for name in headers:
        if "expert" in name and (found := EXPERT.fullmatch(name)):
            families[found[1], found[3]][int(found[2])] = name
    sizes = {len(members) for members in families.values()}
    if len(sizes) != 1 or not sizes <= counts:
        return None
    [size] = sizes
    if not all(_alike(members, headers) for members in families.values()):
        return None
    spare = {name for members in families.values() for at, name in members.items() if at >= KEPT}
    few = {name: header for name, header in headers.items() if name not in spare}
    return Reduced(with_experts(config, size), few)


def expert_counts(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the integers of the keys of CONFIG that speak of experts."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from expert_counts(value)
        elif "expert" in key and type(value) is int:
            yield value


def with_experts(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return CONFIG with few experts where it has SIZE."""
    return {
        key: with_experts(value, size)
        if isinstance(value, Mapping)
        else KEPT
        if "expert" in key and type(value) is int and value == size
        else value
        for key, value in config.items()
    }


def _alike(members: Mapping[int, str], headers: Mapping[str, Header]) -> bool:
    first = headers[next(iter(members.values()))]
    return max(members) == len(members) - 1 and all(headers[n] == first for n in members.values())
