"""Which modules an adapter's configuration says that it changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from .adapter import Adapter, module_of
from .config import Config
from .peft.targets import all_linear, excluded, kept_whole, targeted, targeted_parameters

_LAYER: Final = re.compile(r"(?:(?P<stack>.*?)\.)?(?P<layer>\d+)\.(?P<rest>.+)")

LINEAR: Final = ("linear", "conv1d")
HEAD: Final = "lm_head"
PARTS: Final = ("language_model", "model")  # what mlx-vlm's keys may be relative to


class Position(NamedTuple):
    """A module by its layer: ``model.layers``, 3, ``self_attn.q_proj``."""

    stack: str
    layer: int
    rest: str


class Expectation(NamedTuple):
    """What a configuration says of a base, so that it is expected in the file.

    Attributes:
        modules: paths that must have an update of their weight.
        unknown: names in the configuration that no module of the base has.
        named: other parameters that must have an update.
        whole: parameters that ``modules_to_save`` names, and the file has not.
    """

    modules: frozenset[str]
    unknown: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    whole: tuple[str, ...] = ()

    @property
    def parameters(self) -> frozenset[str]:
        """The parameters that must have an update."""
        return self.named | {f"{module}.weight" for module in self.modules}


def position(module: str) -> Position | None:
    """Return where MODULE lies in a stack of layers; None if it lies in none.

    >>> position("encoder.layer.3.attention.self.query")
    Position(stack='encoder.layer', layer=3, rest='attention.self.query')
    """
    found = _LAYER.fullmatch(module)
    return found and Position(found["stack"] or "", int(found["layer"]), found["rest"])


def expected_updates(
    adapter: Adapter, modules: Iterable[str], parameters: Collection[str] = ()
) -> Expectation:
    """Return which of a base's MODULES and PARAMETERS the configuration of ADAPTER says that it changes.

    Where it names none (mlx-lm without ``keys``, PEFT's ``all-linear``), what is changed in one
    layer is expected in all.
    """
    modules = frozenset(modules)
    changed = [module_of(name) for name in adapter.updates]
    if adapter.dialect == "peft":
        return _expected_peft(adapter, changed, modules, parameters)
    if adapter.config.get("fine_tune_type") == "full":
        return Expectation(frozenset())
    return _expected_mlx(adapter.config, changed, modules)


def _expected_peft(
    adapter: Adapter, changed: list[str], modules: frozenset[str], parameters: Collection[str]
) -> Expectation:
    config = adapter.config
    named = targeted_parameters(config, parameters)
    chosen = targeted(config, modules)
    if not chosen and (not named or config.get("target_modules")):
        chosen = _regular(changed, modules)
    kept = {name for name in parameters if kept_whole(config, name.rpartition(".")[0])}
    missing = sorted(kept - set(adapter.saved))
    weights = {f"{module}.weight" for module in chosen}
    return Expectation(frozenset(chosen), named=frozenset(named - weights), whole=tuple(missing))


def unnamed(
    adapter: Adapter, modules: Iterable[str], kinds: Mapping[str, str] | None = None
) -> set[str]:
    """Return the parameters with an update that the configuration of ADAPTER does not name.

    The program that the adapter is for puts nothing there, and drops or refuses the update.

    Args:
        adapter: as read; of one that is fitted the names may be others.
        modules: of the base.
        kinds: what they are, if anybody can tell.
    """
    names, config = set(adapter.updates), adapter.config
    if adapter.fitted or adapter.dialect not in ("peft", "mlx"):
        return set()
    if adapter.dialect == "peft":
        return names - _named_by_peft(config, names, kinds)
    changed = list(map(module_of, names))
    modules = frozenset(modules).union(changed)
    if named_keys(config) is None:
        layered = filter(position, changed)  # without keys no module of the root is wrapped
        named = set(_last(layered, modules, config.get("num_layers")))
    else:
        named = set(_expected_mlx(config, changed, modules).modules)
    return {name for name in names if module_of(name) not in named}


def _named_by_peft(config: Config, names: set[str], kinds: Mapping[str, str] | None) -> set[str]:
    """Return those of NAMES that PEFT would put an update on; all where only PEFT could tell."""
    if not config.get("target_modules") and not config.get("target_parameters"):
        return names
    changed = {module_of(name) for name in names if name.endswith(".weight")}
    if all_linear(config):
        linear = {m for m in changed if kinds is None or kinds.get(m) in LINEAR} - {HEAD}
        chosen = {module for module in linear if not excluded(config, module)}
    else:
        chosen = targeted(config, changed)
    weights = {f"{module}.weight" for module in chosen}
    return weights | targeted_parameters(config, names)


def named_keys(config: Config) -> list[str] | None:
    """Return the modules that mlx-lm's CONFIG names, within a layer; ``None`` where it names none.

    After a full fine-tune mlx-lm writes null in place of the section.

    >>> named_keys({"lora_parameters": {"keys": ["q"]}}), named_keys({"lora_parameters": None})
    (['q'], None)
    """
    section: Mapping[str, Any] = config.get("lora_parameters") or {}
    return section.get("keys")


def last_layers(changed: Iterable[str], modules: Iterable[str]) -> tuple[int, set[str]]:
    """Return in how many layers, counted from the last, CHANGED lie, and what is missing there.

    Missing are those of MODULES that lie in these layers where one of CHANGED does, and are none of
    them. CHANGED lie in one stack.

    >>> last_layers(["h.1.q", "h.2.q", "h.1.v"], [f"h.{n}.{m}" for n in range(3) for m in "qkv"])
    (2, {'h.2.v'})
    """
    changed = {module for module in changed if position(module)}
    places = {m: p for m in changed.union(modules) if (p := position(m))}
    stacks = {places[module].stack for module in changed}
    first = min((places[module].layer for module in changed), default=0)
    depth = max((p.layer + 1 for p in places.values() if p.stack in stacks), default=1)
    there = {m for m in _regular(changed, places) if places[m].layer >= first}
    return depth - first, there - changed


def _regular(changed: Iterable[str], modules: Iterable[str]) -> set[str]:
    """Return the modules that lie, in any layer, where one of CHANGED lies in its own."""
    kinds = {(p.stack, p.rest) for module in changed if (p := position(module))}
    return {m for m in modules if (p := position(m)) and (p.stack, p.rest) in kinds}


def _expected_mlx(config: Config, changed: list[str], modules: frozenset[str]) -> Expectation:
    keys = named_keys(config)
    last = config.get("num_layers")
    if keys is None:
        return Expectation(frozenset(_last(_regular(changed, modules), modules, last)))
    named = {key: _meant(key, modules, last) for key in keys}
    return Expectation(
        frozenset().union(*named.values()), tuple(key for key, found in named.items() if not found)
    )


def _meant(key: str, modules: frozenset[str], last: int | None) -> set[str]:
    """Return the modules that KEY names: in full, within a layer, or as mlx-vlm, within a part."""
    there = {key} & modules | set(_last(_at(key, modules), modules, last))
    return there or {f"{part}.{key}" for part in PARTS} & modules


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
