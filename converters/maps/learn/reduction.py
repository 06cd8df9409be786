"""Leave out most experts of a large mixture: they are alike, and a few show what is done to all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...checkpoints.base import Header

FEWEST: Final = 32  # experts that are worth it
FEW: Final = 4
MORE: Final = 12  # more than ten, so that a class that sorts them as text is found out
EXPERT: Final = re.compile(r"(.*experts?\.)(0|[1-9][0-9]*)(\..*)")


class Reduced(NamedTuple):
    """A model with few experts.

    Attributes:
        config: with their number.
        headers: without the tensors of the others.
    """

    config: dict[str, Any]
    headers: dict[str, Header]


Families = dict[tuple[str, str], dict[int, str]]  # before and after the index -> names


def reduced(
    config: Mapping[str, Any], headers: Mapping[str, Header], kept: int = FEW
) -> Reduced | None:
    """Return CONFIG and HEADERS with KEPT experts, ``None`` where that cannot be done safely.

    Every family of experts must run from 0 without gaps to a number that a key of the configuration
    with ``expert`` in its name gives, and be of equal tensors.

    >>> headers = {f"mlp.experts.{e}.w": Header("F32", (2, 3)) for e in range(64)}
    >>> small = reduced({"num_experts": 64, "hidden_size": 64}, headers)
    >>> small.config, len(small.headers)
    ({'num_experts': 4, 'hidden_size': 64}, 4)
    """
    families = experts(config, headers)
    if not families:
        return None
    size = len(next(iter(families.values())))
    spare = {name for f in families.values() for at, name in f.items() if at >= kept}
    few = {name: header for name, header in headers.items() if name not in spare}
    return Reduced(with_experts(config, size, kept), few)


def one_layer(config: Mapping[str, Any], headers: Mapping[str, Header]) -> Reduced | None:
    """Return a model like that of ``reduced`` with more experts, but in the first layer only."""
    found = reduced(config, headers, MORE)
    if found is None:
        return None
    families = experts(config, headers)
    first = next(iter(families))[0]
    spare = {n for head, f in families.items() if head[0] != first for n in f.values()}
    kept = {name: header for name, header in found.headers.items() if name not in spare}
    return Reduced(found.config, kept)


def experts(config: Mapping[str, Any], headers: Mapping[str, Header]) -> Families:
    """Return the families of experts, none if one of them is not as it should be."""
    counts = {value for value in expert_counts(config) if value >= FEWEST}
    families: Families = defaultdict(dict)
    for name in headers if counts else ():
        if "expert" in name and (found := EXPERT.fullmatch(name)):
            families[found[1], found[3]][int(found[2])] = name
    sizes = {len(members) for members in families.values()}
    alike = len(sizes) == 1 and sizes <= counts
    return families if alike and all(_alike(f, headers) for f in families.values()) else {}


def expert_counts(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the integers of the keys of CONFIG that speak of experts."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from expert_counts(value)
        elif "expert" in key and type(value) is int:
            yield value


def with_experts(config: Mapping[str, Any], size: int, kept: int) -> dict[str, Any]:
    """Return CONFIG with KEPT experts where it has SIZE."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            made[key] = with_experts(value, size, kept)
        else:
            counted = "expert" in key and type(value) is int and value == size
            made[key] = kept if counted else value
    return made


def _alike(members: Mapping[int, str], headers: Mapping[str, Header]) -> bool:
    first = headers[next(iter(members.values()))]
    return max(members) == len(members) - 1 and all(headers[n] == first for n in members.values())
