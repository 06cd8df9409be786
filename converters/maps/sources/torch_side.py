"""A model's tensors brought to PyTorch's names by its map, for what runs the model without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...checkpoints import Header
from ...common.dtypes import CODE
from ...models import Model
from ...models.torch_side import TorchSide
from ...runtimes.pretrained import torch_config
from ...values import Array, Dense, LowRank
from ..binding.plan import Plan
from ..execution.execution import apply
from ..notation.rules import Drop
from ..programs.computed import Computed
from .choose import known_map
from .modules import module_map
from .variants import table_of


def with_torch_side(model: Model) -> Model:
    """Return MODEL so that it can be run in PyTorch, whosever names its tensors have."""
    return replace(model, torch_side=torch_side)


def torch_side(model: Model) -> TorchSide:
    """Return MODEL's tensors by PyTorch's names.

    MLX's come back through the inverse of the model's map, in float32 where it changes values:
    ``w - 1`` in 16 bits may have fewer digits than ``w``, and would be another model. Tensors that
    the adapter brings along whole stand in for the model's own.
    """
    arrays = model.own_values()
    updates = dict(model.adapter.updates) if model.adapter else {}
    if model.framework == "mlx":
        back = known_map(model).inverse()
        plan = back.bind(headers_of(arrays), config=model.config, sizes=model.sizes)
        values = apply(plan, {name: Dense(array) for name, array in widened(plan, arrays).items()})
        arrays = {name: value.array for name, value in values.items() if isinstance(value, Dense)}
        moved = apply(plan, updates)
        updates = {name: value for name, value in moved.items() if isinstance(value, LowRank)}

    def parameter_updates() -> dict[str, LowRank]:
        config, headers = torch_config(model), headers_of(arrays)
        there = module_map(config, headers, model.family.torch_class if model.family else "")
        return there.rename_updates(updates, headers, config=config)

    return TorchSide(arrays, updates, parameter_updates, recomputed(model))


def headers_of(arrays: Mapping[str, Array]) -> dict[str, Header]:
    """Return what the header of a file with ARRAYS would say."""
    return {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}


def widened(plan: Plan, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return ARRAYS, in float32 those that PLAN changes in value without a program."""
    changed = {
        name
        for step in plan.steps
        if not step.exact and not isinstance(step.rule, Computed)
        for name in step.source_names
        if arrays[name].dtype.itemsize < np.dtype(np.float32).itemsize
    }
    return {
        name: array.astype(np.float32) if name in changed else array
        for name, array in arrays.items()
    }


def recomputed(model: Model) -> tuple[str, ...]:
    """Return the torch names that MODEL's table says are recomputed."""
    if model.family is None or not model.family.map:
        return ()
    rules = table_of(model.family).rules
    return tuple(str(rule.name) for rule in rules if isinstance(rule, Drop))
