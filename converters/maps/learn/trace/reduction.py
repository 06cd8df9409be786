"""Leave out most experts of a large mixture: they are alike, and a few show what is done to all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ....checkpoints.base import Header

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


Families: TypeAlias = dict[tuple[str, str], dict[int, str]]  # before and after the index -> names


class Mixture:
    """A model, its experts if they are all alike, and how many they are in a layer.

    >>> headers = {f"mlp.experts.{e}.w": Header("F32", (2, 3)) for e in range(64)}
    >>> small = Mixture({"num_experts": 64, "hidden_size": 64}, headers).reduced(FEW)
    >>> small.config, len(small.headers)
    ({'num_experts': 4, 'hidden_size': 64}, 4)
    """

    def __init__(self, config: Mapping[str, Any], headers: Mapping[str, Header]) -> None:
        self.config, self.headers = config, headers
        self.families = experts(config, headers)
        self.size = max(map(len, self.families.values()), default=0)

    def reduced(self, kept: int, layer: str | None = None) -> Reduced:
        """Return the model with KEPT experts, in that LAYER only if one is given."""
        spare = {
            name
            for (head, _), members in self.families.items()
            for at, name in members.items()
            if at >= kept or layer not in (None, head)
        }
        few = {name: header for name, header in self.headers.items() if name not in spare}
        return Reduced(with_experts(self.config, self.size, kept), few)

    def attempts(self) -> Iterator[tuple[Reduced, Reduced | None]]:
        """Yield models that may stand for this one, none if it has no experts that are all alike.

        The first has few experts; beside it is one with more of them in one layer only, which shows
        whether they lie in the same order. The second has more everywhere, for classes that do not
        take a layer without experts.
        """
        if self.families:
            [(layer, _), *_] = self.families
            yield self.reduced(FEW), self.reduced(MORE, layer)
            yield self.reduced(MORE), None


def experts(config: Mapping[str, Any], headers: Mapping[str, Header]) -> Families:
    """Return the families of experts, none if one of them is not as it should be.

    Every family must run from 0 without gaps to a number that a key of the configuration with
    ``expert`` in its name gives, and be of equal tensors.
    """
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
