"""The source's numbers that a package's constants are held against, updates merged."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...converters.captures.mlprogram.arithmetic import evaluate, tensors_of
from ...converters.models import Model
from ...converters.values import Array
from ..probes.probes import Probe
from ..weights.weights import base_weights, own_copy

if TYPE_CHECKING:
    from ..reference.computed import Computed


@dataclass
class SourceTensors:
    """Reads the tensors of a model, and those that it computes itself.

    Attributes:
        model: the source.
        computed: what it computes from its weights alone when it runs; see ``compute``.
    """

    model: Model
    computed: dict[str, Computed] = field(default_factory=dict)

    @cached_property
    def _built(self) -> tuple[Any, Mapping[str, str | None]]:
        from ...converters.runtimes.torch import build

        return build(replace(own_copy(self.model), adapter=None), "float32")

    @cached_property
    def buffers(self) -> dict[str, Array]:
        """Tensors that the model computes itself, such as inverse frequencies, by name."""
        from ...converters.captures.described import held

        _, computed = held(self._built[0])
        found = {name: it.detach() for name, it in computed.items() if it.is_floating_point()}
        return {name: it.numpy() for name, it in found.items()}

    def compute(self, probes: Sequence[Probe], sizes: Collection[int]) -> None:
        """Run the model on PROBES, and keep what it computes from its weights alone, of these SIZES.

        What it computes from updated weights is left out: the module that runs lacks the updates.
        """
        from ..reference.computed import computed_by

        updated = self.model.adapter.updates.keys() if self.model.adapter else ()
        found = computed_by(self._built[0], self.model.signature, probes, sizes)
        kept = {n: it for n, it in found.items() if not {*map(self.own, it.parts)} & {*updated}}
        self.computed |= kept

    def parts(self, rule: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tensors that a RULE makes a constant of."""
        made = self.computed.get(rule.get("computed", ""))
        names = made.parts if made else tensors_of(rule)
        return tuple(self.own(name) for name in names)

    def epsilon(self, path: str) -> float | None:
        """Return the epsilon of the norm at PATH; ``None`` where the model has no module of that name."""
        module = dict(self._built[0].named_modules()).get(path)
        return getattr(module, "eps", None)

    def own(self, name: str) -> str:
        """Return what the model's files call the tensor that its module calls NAME."""
        if name in self._weights.headers:
            return name
        return next((ours for ours, there in self._built[1].items() if there == name), name)

    @cached_property
    def _weights(self) -> Any:
        return base_weights(self.model)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors by name."""
        return {name: it.shape for name, it in self._weights.headers.items()}

    def of_size(self, shape: tuple[int, ...]) -> list[str]:
        """Return the tensors of as many numbers as SHAPE has."""
        size, headers = math.prod(shape), self._weights.headers
        return [name for name, it in headers.items() if math.prod(it.shape) == size]

    def evaluated(self, expression: Any) -> Array | None:
        """Return the value of EXPRESSION, arithmetic on tensors, in float64; ``None`` where it has none."""
        try:
            return evaluate(expression, self.read)
        except (KeyError, TypeError, ValueError):
            return None

    def read(self, kind: str, name: str) -> Array:
        """Return the tensor NAME of a KIND, ``key`` or ``buffer``.

        Raises:
            KeyError: there is none.
        """
        if kind == "buffer":
            return self.buffers[name]
        name = self.own(name)
        if name not in self._weights.headers:
            raise KeyError(name)
        array: Array = self._weights.read(name)
        update = self.model.adapter.updates.get(name) if self.model.adapter else None
        return array if update is None else np.asarray(update.applied_to(array))
