"""A model's parameters as an adapter's dialect names them, and the way there and back.

PEFT names the modules of the live class of transformers, mlx-lm those of the MLX class; a directory
has its own names for the same weights. Maps lead from one to the other, so no dialect needs a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...errors import UnsupportedError, WeighbridgeError
from ..checkpoints import Header
from ..libraries import modules as described
from ..maps import Plan, WeightMap, apply
from ..maps.sources.kinds import kinds_through
from ..maps.sources.modules import module_map
from ..models import Model
from ..values import Array, Dense, LowRank, Value
from .conversion import conversion_of

Updates = Mapping[str, LowRank]
Arrays = Mapping[str, Array]


class Leg(NamedTuple):
    """A map bound to a model: one part of a way."""

    map: WeightMap
    plan: Plan
    config: Mapping[str, Any]

    @property
    def back(self) -> Plan:
        """The same part, in the other direction."""
        inverse = self.map.inverse()
        return inverse.bind(self.plan.layout, config=self.config, sizes=self.plan.sizes)


@dataclass(frozen=True)
class Side:
    """How a dialect of FRAMEWORK sees a model.

    Attributes:
        framework: ``torch`` (PEFT) or ``mlx``.
        headers: the parameters by the dialect's names.
        kinds: what each module is, by its path; ``None`` where nobody here can tell.
        tied: parameters that are one with another.
        legs: the way from the model's own names.
    """

    framework: str
    headers: Mapping[str, Header]
    kinds: Mapping[str, str] | None
    tied: frozenset[str]
    legs: tuple[Leg, ...]

    @cached_property
    def _plans_back(self) -> tuple[Plan, ...]:
        return tuple(leg.back for leg in reversed(self.legs))

    def forth(self, updates: Updates, saved: Arrays) -> tuple[dict[str, LowRank], dict[str, Array]]:
        """Return UPDATES and SAVED tensors, named as by the model, under this side's names."""
        return carried(tuple(leg.plan for leg in self.legs), updates, saved)

    def back(self, updates: Updates, saved: Arrays) -> tuple[dict[str, LowRank], dict[str, Array]]:
        """Return UPDATES and SAVED tensors of this side under the model's own names."""
        return carried(self._plans_back, updates, saved)


def carried(
    plans: tuple[Plan, ...], updates: Updates, saved: Arrays
) -> tuple[dict[str, LowRank], dict[str, Array]]:
    """Return UPDATES and SAVED tensors after all PLANS."""
    values: dict[str, Value] = dict(updates)
    whole: dict[str, Value] = {name: Dense(array) for name, array in saved.items()}
    for plan in plans:
        values, whole = apply(plan, values), apply(plan, whole)
    return (
        {name: value for name, value in values.items() if isinstance(value, LowRank)},
        {name: value.array for name, value in whole.items() if isinstance(value, Dense)},
    )


def side_of(model: Model, framework: str, *, modules: bool = True) -> Side:
    """Return how an adapter of FRAMEWORK names the parameters of MODEL, which has no adapter on.

    In torch these are the names of the live class's MODULES, or else those of the checkpoint.

    Raises:
        WeighbridgeError: no map leads there.
    """
    legs = crossing(model, framework)
    headers = legs[-1].plan.layout if legs else model.checkpoint.headers
    if framework == "mlx":
        return Side("mlx", headers, mlx_kinds(model, legs), frozenset(), legs)
    config = config_in(model, "torch")
    found = modules_of(config) if modules else None
    if found is None:
        return Side("torch", headers, None, frozenset(), legs)
    last = bound(module_map(config, headers), headers, config, {})
    return Side("torch", last.plan.layout, found.kinds, found.tied, (*legs, last))


def crossing(model: Model, framework: str) -> tuple[Leg, ...]:
    """Return the way from MODEL's names to the checkpoint names of FRAMEWORK; none if they are it."""
    if model.framework == framework:
        return ()
    way = conversion_of(model, framework)
    return (bound(way.directed, model.checkpoint.headers, way.sizes_from, model.sizes),)


def bound(
    directed: WeightMap,
    headers: Mapping[str, Header],
    config: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Leg:
    """Return DIRECTED bound to HEADERS."""
    return Leg(directed, directed.bind(headers, config=config, sizes=sizes), config)


def config_in(model: Model, framework: str) -> Mapping[str, Any]:
    """Return MODEL's configuration as FRAMEWORK reads it."""
    return conversion_of(model, framework).config


def modules_of(config: Mapping[str, Any]) -> described.Modules | None:
    """Return what transformers says of the modules of CONFIG; ``None`` where it is not there to ask."""
    if not config.get("model_type"):
        return None
    try:
        return described.describe(config)
    except (ModuleNotFoundError, UnsupportedError):
        return None


def mlx_kinds(model: Model, legs: tuple[Leg, ...]) -> Mapping[str, str] | None:
    """Return what each MLX module of MODEL is: by the library's class, else by torch's through the map."""
    if model.library is not None and not (model.family and model.family.map):
        return described.mlx_kinds(model.library, config_in(model, "mlx"))
    found = modules_of(config_in(model, "torch"))
    return None if found is None else kinds_of_map(model, found, legs)


def kinds_of_map(
    model: Model, found: described.Modules, legs: tuple[Leg, ...]
) -> Mapping[str, str] | None:
    """Return the kinds FOUND in torch under the names that MODEL's map leads to."""
    try:
        forward = legs[0].plan if legs else crossing(model, "torch")[0].back
        config = config_in(model, "torch")
        last = bound(module_map(config, forward.headers), forward.headers, config, {})
    except WeighbridgeError:
        return None
    return kinds_through(forward, kinds_through(last.back, found.kinds))
