"""A captured module: an ``mlx.nn.Module`` that computes what a torch module computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import torch

from ....errors import MismatchError
from ...values import Array, LowRank
from ..specs import AdapterSpec
from . import adapters
from .adapters import Slot, Sum
from .dtypes import to_torch
from .graph import Graph, Step, Tap
from .parameters import Branch, Location, Tensor, plant
from .ports import Port, accept

Output = Any  # an array, or a tuple or dictionary of outputs


@dataclass(frozen=True)
class Recording:
    """What is kept of a torch module: its graph and names, none of its tensors.

    Attributes:
        graph: the steps.
        ports: the inputs.
        names: every name of torch's state dict -> (first name of the same tensor, torch dtype).
        reads: graph value -> name of the parameter or buffer that it starts from.
        constants: graph value -> array.
        writes: positions of the graph's outputs -> name of the buffer that they update.
        structure: the module's return value, with positions of the graph's outputs as leaves.
    """

    graph: Graph
    ports: tuple[Port, ...]
    names: Mapping[str, tuple[str, torch.dtype]]
    reads: Mapping[str, str]
    constants: Mapping[str, mx.array]
    writes: Mapping[int, str]
    structure: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Recording:
        """Return this recording: nothing in it changes."""
        return self


@dataclass
class _Wiring:
    """What changes: the graph with its adapters, and where arrays live. No dict: MLX would adopt it."""

    graph: Graph
    locations: dict[str, Location] = field(default_factory=dict)  # by first name, or graph value
    slots: dict[str, Slot] = field(default_factory=dict)  # by name of the weight
    sums: dict[str, tuple[Sum, LowRank]] = field(
        default_factory=dict
    )  # by first name, and as given


def _arranged(structure: Any, results: Any) -> Output:
    """Return STRUCTURE with positions replaced by results."""
    if isinstance(structure, dict):
        return {key: _arranged(below, results) for key, below in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_arranged(below, results) for below in structure)
    return results[structure]


def _replacement(value: mx.array, correction: mx.array) -> mx.array:
    """Return CORRECTION in place of VALUE where it has its shape."""
    fits = correction.shape == value.shape
    return mx.array(correction).astype(value.dtype) if fits else value


class Captured(Branch):
    """A torch module in MLX: same parameter names and layouts, same results, differentiable.

    Train or eval mode is the one that the torch module was in: ``train()`` and ``eval()`` change
    nothing. Under ``mx.compile``, modules with batch statistics need ``state`` among the outputs, and
    those with dropout ``mx.random.state`` among inputs and outputs.
    """

    def __init__(self, recording: Recording, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._recording = recording
        self._wiring = _Wiring(recording.graph)
        for name, tensor in tensors.items():
            self._wiring.locations[name] = plant(self, name, tensor)

    def __call__(self, **inputs: mx.array) -> Output:
        """Return what the torch module returns: an array, tuple, or dictionary (of a ``ModelOutput``)."""
        return self._run(inputs, None)

    def _location(self, name: str) -> Location:
        """Return where the tensor called NAME lives; tied names live together."""
        first, _ = self._recording.names.get(name, (name, None))
        return self._wiring.locations[first]

    def _run(self, inputs: Mapping[str, mx.array], tap: Tap | None) -> Output:
        recording, wiring = self._recording, self._wiring
        values: dict[str, Any] = accept(recording.ports, inputs)
        values.update(recording.constants)
        values.update((value, self._location(n).get()) for value, n in recording.reads.items())
        for slot in wiring.slots.values():
            values.update((name, wiring.locations[name].get()) for name in (slot.down, slot.up))
        for value, name in recording.reads.items() if wiring.sums else ():
            if name in wiring.sums:
                values[value] = wiring.sums[name][0].applied_to(values[value])
        results = wiring.graph.run(values, tap)
        for position, name in recording.writes.items():
            self._location(name).set(mx.stop_gradient(results[position]))
        return _arranged(recording.structure, results)

    def trace(
        self, inputs: Mapping[str, mx.array], corrections: Mapping[str, mx.array] | None = None
    ) -> tuple[Output, dict[str, mx.array]]:
        """Run and return the outputs and what every site computed, before its own correction.

        A site is a submodule, by its path; its correction replaces its output for all that follows, and
        for its parents. See ``sites`` for what is not visible. Corrections of other names or shapes
        do nothing.
        """
        corrections = corrections or {}
        seen: dict[str, mx.array] = {}

        def tap(sites: tuple[str, ...], value: mx.array) -> mx.array:
            for site in sites:
                seen[site] = value
                if site in corrections:
                    value = _replacement(value, corrections[site])
            return value

        return self._run(inputs, tap), seen

    @property
    def recording(self) -> Recording:
        """What was recorded, none of its tensors."""
        return self._recording

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, in order of computation."""
        return self._wiring.graph.sites

    def update(self, parameters: Any, strict: bool = True) -> Captured:  # type: ignore[override]
        """Replace parameters (see ``mlx.nn.Module.update``); a list is a numbered top level."""
        if isinstance(parameters, list):
            parameters = {str(i): below for i, below in enumerate(parameters) if below}
        super().update(parameters, strict)
        return self

    def torch_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state dict of the torch module, tied names included, without adapters."""
        names = self._recording.names
        tensors = {
            first: to_torch(self._location(first).get(), dtype) for first, dtype in names.values()
        }
        return {name: tensors[first] for name, (first, _) in names.items()}

    def insert_adapters(self, specs: Mapping[str, AdapterSpec], seed: int = 0) -> None:
        """Insert a trainable low-rank update at every weight of SPECS and freeze everything else.

        Adds ``<module>.lora_a``, shape (in, rank), and ``<module>.lora_b``, shape (rank, out); the
        module computes ``y + scale * (x @ lora_a) @ lora_b`` (LoRA, Hu et al. 2021, equation 3).

        Raises:
            MismatchError: a name is no weight of a linear layer, embedding or convolution.
        """
        uses = self._adaptable()
        adapters.check_names(specs, uses)
        self.freeze()
        wiring, names = self._wiring, sorted(specs)
        for name, key in zip(
            names, mx.random.split(mx.random.key(seed), len(names) + 1), strict=False
        ):
            weight = self._location(name).get()
            factors = adapters.initial(uses[name][1], weight, specs[name].rank, key)
            wiring.slots[name] = self._planted(name, factors, uses[name][0], specs[name].scale)
        self._connect()

    def _adaptable(self) -> dict[str, tuple[str, Step]]:
        """Return weight name -> graph value and a step that uses it, for weights that can be adapted."""
        reads = self._recording.reads
        steps = adapters.adaptable(self._recording.graph)
        return {
            reads[value]: (value, step)
            for value, step in steps.items()
            if f".{reads.get(value)}".endswith(".weight")
        }

    def _planted(
        self, name: str, factors: tuple[mx.array, mx.array], value: str, scale: float
    ) -> Slot:
        """Store FACTORS beside the weight called NAME."""
        down, up = (name.removesuffix("weight") + end for end in adapters.FACTORS)
        slot = Slot(value, down, up, scale)
        for key, array in zip((slot.down, slot.up), factors, strict=True):
            self._wiring.locations[key] = plant(self, key, Tensor(array, trainable=True))
        return slot

    def _connect(self) -> None:
        """Put the adapters into the graph, and let them alone be trained."""
        wiring = self._wiring
        for slot in wiring.slots.values():
            for key in (slot.down, slot.up):
                plant(self, key, Tensor(wiring.locations[key].get(), trainable=True))
        slots = {slot.weight: slot for slot in wiring.slots.values()}
        wiring.graph = adapters.insert(self._recording.graph, slots)

    def set_adapters(self, updates: Mapping[str, LowRank]) -> None:
        """Insert the adapters of UPDATES (weight name -> update), or replace those that are there.

        An update lies as its weight. Linear layers, embeddings and convolutions compute with the
        factors, which can be trained; for DoRA and any other parameter (a ``Conv1D``, the experts
        of a layer) the weight and its update are summed again in each call, and frozen.

        Raises:
            MismatchError: a name is no parameter, or an update has another shape; all are listed.
        """
        uses, known = self._adaptable(), self._recording.names
        adapters.check_names(updates, {**uses, **known})
        check_shapes(updates, {name: self._location(name).get() for name in updates})
        plain = {n: u for n, u in updates.items() if n in uses and u.magnitude is None}
        self.insert_adapters({n: AdapterSpec(u.rank, u.scale) for n, u in plain.items()})
        for name, update in plain.items():
            slot, pair = self._wiring.slots[name], adapters.factors(uses[name][1], update)
            for key, array in zip((slot.down, slot.up), pair, strict=True):
                location = self._wiring.locations[key]
                location.set(_fitting(array, location.get()))
        for name in updates.keys() - plain.keys():
            first, _ = known.get(name, (name, None))
            self._wiring.sums[first] = self._sum(name, updates[name]), updates[name]

    def _sum(self, name: str, update: LowRank) -> Sum:
        weight = self._location(name).get()
        a, b = (_fitting(array, weight) for array in (update.a, update.b))
        magnitude = None if update.magnitude is None else _fitting(update.magnitude, weight)
        return Sum(a, b, update.scale, magnitude)

    def adapter_updates(self) -> dict[str, LowRank]:
        """Return weight name -> update, those that can be trained in float32."""
        locations, uses = self._wiring.locations, self._adaptable()
        trained = {
            name: adapters.as_update(
                uses[name][1],
                _numpy(locations[slot.down].get()),
                _numpy(locations[slot.up].get()),
                slot.scale,
            )
            for name, slot in self._wiring.slots.items()
        }
        return trained | {name: update for name, (_, update) in self._wiring.sums.items()}


def check_shapes(updates: Mapping[str, LowRank], weights: Mapping[str, mx.array]) -> None:
    """Check that each of UPDATES has as many rows and columns as its weight, kernel axes in one.

    Raises:
        MismatchError: all that have not are listed.
    """
    problems = [
        f"{name}: expected an update of {list(weights[name].shape)}, found {list(update.shape)}"
        for name, update in sorted(updates.items())
        if update.shape != tuple(weights[name].shape)
        and update.shape != (len(weights[name]), weights[name].size // len(weights[name]))
    ]
    if problems:
        raise MismatchError("adapters do not fit the captured module", problems)


def _fitting(array: Array, present: mx.array) -> mx.array:
    """Return ARRAY in the dtype of PRESENT."""
    if present.dtype == mx.float64:
        return mx.array(array.astype(np.float64), dtype=mx.float64)
    return mx.array(array.astype(np.float32)).astype(present.dtype)


def _numpy(array: mx.array) -> Array:
    return np.array(array.astype(mx.float32))
