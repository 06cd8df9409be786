"""A model's tensors brought to PyTorch's names by its map, for what runs the model without one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from ...adapters.merging.modules_to_save import ModulesToSave
from ...checkpoints import Checkpoint, Header
from ...checkpoints.arrays import FileArrays
from ...checkpoints.derived import Derived
from ...common.dtypes import NUMPY
from ...models import Model
from ...models.model import TorchSide
from ...runtimes.pretrained import torch_config
from ...values import Array, LowRank
from ..binding.plan import Plan
from ..execution.execution import apply
from ..execution.view import Mapped
from ..notation.rules import Drop
from ..programs.computed import Computed
from .choose import known_map
from .modules import module_map
from .variants import table_of

NARROW: Final = 2  # bytes of a number


def with_torch_side(model: Model) -> Model:
    """Return MODEL so that it can be run in PyTorch, whosever names its tensors have."""
    return model if model.torch_side else replace(model, torch_side=torch_side)


def torch_side(model: Model) -> TorchSide:
    """Return MODEL's tensors by PyTorch's names.

    MLX's come back through the inverse of the model's map, in float32 where it changes values:
    ``w - 1`` in 16 bits may have fewer digits than ``w``, and would be another model. Tensors that
    the adapter brings along whole stand in for the model's own.
    """
    arrays = model.own_values()
    updates = dict(model.adapter.updates) if model.adapter else {}
    own = arrays.checkpoint
    base = own.base if isinstance(own, ModulesToSave) else own
    kept = base.headers
    if model.framework == "mlx":
        back = partial(known_map(model).inverse().bind, config=model.config, sizes=model.sizes)
        plan = back(own.headers)
        kept = plan.layout if base is own else back(base.headers).layout
        wide = Widened(own, changed(plan))
        arrays = FileArrays(Mapped(back(wide.headers), wide))
        moved = apply(plan, updates)
        updates = {name: value for name, value in moved.items() if isinstance(value, LowRank)}

    def parameter_updates() -> dict[str, LowRank]:
        config, headers = torch_config(model), arrays.checkpoint.headers
        there = module_map(config, headers, model.family.torch_class if model.family else "")
        return there.rename_updates(updates, headers, config=config)

    more = frozenset(name for name, it in kept.items() if NUMPY[it.dtype].itemsize > NARROW)
    return TorchSide(arrays, updates, parameter_updates, recomputed(model), more)


def changed(plan: Plan) -> set[str]:
    """Return the sources in 16 bits or fewer that PLAN changes in value without a program."""
    return {
        name
        for step in plan.steps
        if not step.exact and not isinstance(step.rule, Computed)
        for name in step.source_names
        if NUMPY[plan.headers[name].dtype].itemsize <= NARROW
    }


class Widened(Derived):
    """CHECKPOINT with tensors NAMES in float32."""

    def __init__(self, checkpoint: Checkpoint, names: Collection[str]) -> None:
        wide = {name: Header("F32", checkpoint.headers[name].shape) for name in names}
        super().__init__(checkpoint, {**checkpoint.headers, **wide})
        self._names = frozenset(names)

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        array = self._own.read(name)
        return array.astype(np.float32) if name in self._names else array

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        if name in self._names:
            return super().stream(name, start, stop)
        return self._own.stream(name, start, stop)


def recomputed(model: Model) -> tuple[str, ...]:
    """Return the torch names that MODEL's table says are recomputed."""
    if model.family is None or not model.family.map:
        return ()
    rules = table_of(model.family).rules
    return tuple(str(rule.name) for rule in rules if isinstance(rule, Drop))
