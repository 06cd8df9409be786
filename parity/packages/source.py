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
from ..goldens.rounding import CONSTANTS
from ..probes.probes import Probe
from ..weights.weights import base_weights, own_copy

if TYPE_CHECKING:
    from ..reference.computed import Computed


@dataclass
class SourceTensors:
    """Reads the tensors of a model, and those that it computes itself.

    Attributes:
        model: the source.
        halved: whether its tensors are rounded to float16 first.
        computed: what it computes from its weights alone when it runs; see ``compute``.
        in_half: the same where it runs in float16, by the recording whose numbers it has; see ``compute_in_half``.
    """

    model: Model
    halved: bool = False
    computed: dict[str, Computed] = field(default_factory=dict)
    in_half: dict[str, dict[str, Computed]] = field(default_factory=dict)

    @cached_property
    def _built(self) -> tuple[Any, Mapping[str, str | None]]:
        from ..reference.reference import round_weights

        module, places = self._build("float32")
        return (round_weights(module, "float16") if self.halved else module), places

    def _build(self, dtype: str) -> tuple[Any, Mapping[str, str | None]]:
        from ...converters.runtimes.torch import build

        return build(replace(own_copy(self.model), adapter=None), dtype)

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

        found = computed_by(self._built[0], self.model.signature, probes, sizes)
        self.computed |= self._of_base(found)

    def compute_in_half(self, probes: Sequence[Probe], sizes: Collection[int]) -> None:
        """Do what ``compute`` does in float16, as exporters of a module in float16 do ahead of time.

        Some round each of its numbers to float16 first, others do not.
        """
        from ..reference.computed import computed_by
        from ..reference.float64 import constants_of
        from ..reference.reference import narrow_module

        module = narrow_module(replace(self.model, adapter=None), "float16", probes)
        for way in ("float16", f"float16{CONSTANTS}"):
            with constants_of(way):
                found = computed_by(module, self.model.signature, probes, sizes, "float16")
            self.in_half[way] = self._of_base(found)

    def _of_base(self, found: Mapping[str, Computed]) -> dict[str, Computed]:
        """Return those of FOUND that no update of the model changes."""
        updated = self.model.adapter.updates.keys() if self.model.adapter else ()
        return {n: it for n, it in found.items() if not {*map(self.own, it.parts)} & {*updated}}

    def parts(self, rule: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tensors that a RULE makes a constant of."""
        known = self.in_half.get(rule.get("in", ""), self.computed)
        made = known.get(rule.get("computed", ""))
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
        array = array if update is None else np.asarray(update.applied_to(array))
        return array.astype(np.float16).astype(np.float32) if self.halved else array
