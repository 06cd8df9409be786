"""Which modules an adapter's configuration promises to change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .adapter import Adapter
from .config import Config
from .peft import targeted

_LAYER: Final = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<layer>\d+)\.(?P<rest>.+)")


class Position(NamedTuple):
    """A module by its layer: ``model.layers``, 3, ``self_attn.q_proj``."""

    stack: str
    layer: int
    rest: str


class Promise(NamedTuple):
    """What a configuration promises of a base.

    Attributes:
        modules: paths that must have an update.
        unknown: names in the configuration that no module of the base has.
    """

    modules: frozenset[str]
    unknown: tuple[str, ...] = ()


def position(module: str) -> Position | None:
    """Return where MODULE lies in a stack of layers; None if it lies in none.

    >>> position("encoder.layer.3.attention.self.query")
    Position(stack='encoder.layer', layer=3, rest='attention.self.query')
    """
    found = _LAYER.fullmatch(module)
    return found and Position(found["stack"] or "", int(found["layer"]), found["rest"])


def promised(adapter: Adapter, modules: Iterable[str]) -> Promise:
    """Return which of a base's MODULES the configuration of ADAPTER promises to change.

    Where it names none (mlx-lm without ``keys``, PEFT's ``all-linear``), what is changed in one
    layer is promised in all.
    """
    modules = frozenset(modules)
    touched = [name.removesuffix(".weight") for name in adapter.updates]
    if adapter.dialect == "peft":
        return Promise(frozenset(targeted(adapter.config, modules) or _regular(touched, modules)))
    return _promised_mlx(adapter.config, touched, modules)


def _regular(touched: Iterable[str], modules: Iterable[str]) -> set[str]:
    """Return the modules that lie, in any layer, where one of TOUCHED lies in its own."""
    kinds = {(p.stack, p.rest) for module in touched if (p := position(module))}
    return {m for m in modules if (p := position(m)) and (p.stack, p.rest) in kinds}


def _promised_mlx(config: Config, touched: list[str], modules: frozenset[str]) -> Promise:
    keys = config.get("lora_parameters", {}).get("keys")
    last = config.get("num_layers")
    if keys is None:
        return Promise(frozenset(_last(_regular(touched, modules), modules, last)))
    named = {key: {key} & modules | set(_last(_at(key, modules), modules, last)) for key in keys}
    return Promise(
        frozenset().union(*named.values()), tuple(key for key, found in named.items() if not found)
    )


def _at(key: str, modules: Iterable[str]) -> Iterator[str]:
    """Yield the modules that are called KEY within their layer."""
    return (module for module in modules if (p := position(module)) and p.rest == key)


def _last(chosen: Iterable[str], modules: frozenset[str], count: int | None) -> Iterator[str]:
    """Yield those of CHOSEN in the last COUNT layers of their stack; all if COUNT is not positive."""
    depth: dict[str, int] = {}
    for found in filter(None, map(position, modules)):
        depth[found.stack] = max(depth.get(found.stack, 0), found.layer + 1)
    for module in chosen:
        place = position(module)
        if not count or count < 0 or (place and place.layer >= depth[place.stack] - count):
            yield module
