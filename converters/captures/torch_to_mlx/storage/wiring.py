"""What changes in a captured module: where its arrays live, and what was put into its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from ....quantization.scheme import Scheme
from ..adapters.factors import beside
from ..adapters.forms import Slot, adapted, summed
from ..dtypes import cast, mlx_dtype
from ..graph import Graph, Run, Step
from ..parameters import Branch, Location, Tensor, plant
from ..quantized.forms import quantized_runs
from ..quantized.value import Parts, Quantized, Values
from ..recording.recorded import Recording
from ..segments import segmented


@dataclass(eq=False)
class Wiring:
    """The parameters of a captured module, in whichever mode it runs.

    Attributes:
        root: the module.
        recording: the first one; names are its names.
        locations: by first name of a tensor, or name of a part or factor.
        slots: adapters in steps, by name of the weight.
        sums: adapters of weights that are summed with them, by first name: the name given, the slot.
        schemes: of quantized weights, by first name.
        trained: parameters that are trained beside adapters.
        segments: modules whose values are computed again for the gradient.
    """

    root: Branch
    recording: Recording
    locations: dict[str, Location] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    sums: dict[str, tuple[str, Slot]] = field(default_factory=dict)
    schemes: dict[str, Scheme] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    segments: tuple[str, ...] = ()
    _graphs: dict[tuple[int, bool], Graph] = field(default_factory=dict)
    _reads: dict[int, list[tuple[str, Location, mx.Dtype]]] = field(default_factory=dict)

    def first(self, name: str) -> str:
        """Return the first name of the tensor called NAME; tied names are one tensor."""
        first, _ = self.recording.names.get(name, (name, None))
        return first

    def location(self, name: str) -> Location:
        """Return where the tensor called NAME lives."""
        return self.locations[self.first(name)]

    def place(self, name: str, array: mx.array, *, trainable: bool) -> None:
        """Store ARRAY under NAME."""
        self.locations[name] = plant(self.root, name, Tensor(array, trainable))
        self._reads.clear()

    def dtype(self, name: str) -> mx.Dtype:
        """Return the dtype in which the graph has the tensor called NAME."""
        return mlx_dtype(self.recording.names[name][1])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the tensor called NAME, of a quantized one the shape it stands for."""
        shape = tuple(self.location(name).get().shape)
        scheme = self.schemes.get(self.first(name))
        return (*shape[:-1], shape[-1] * 32 // scheme.bits) if scheme else shape

    def part(self, name: str, part: str) -> Location:
        """Return where PART of the quantized weight called NAME lives."""
        return (
            self.location(name)
            if part == "weight"
            else self.locations[beside(self.first(name), part)]
        )

    def value(self, name: str) -> Any:
        """Return the tensor called NAME as the graph takes it: in its dtype, perhaps quantized."""
        first, recorded = self.recording.names[name]
        scheme, dtype = self.schemes.get(first), mlx_dtype(recorded)
        if scheme is None:
            return cast(self.locations[first].get(), dtype)
        keys = Parts._fields if scheme.affine else Parts._fields[:2]
        return Quantized(Parts(*(self.part(name, key).get() for key in keys)), scheme, dtype)

    def dense(self, name: str) -> mx.array:
        """Return the tensor called NAME as an array."""
        value = self.value(name)
        array: mx.array = value.dense() if isinstance(value, Quantized) else value
        return array

    def values(self, recording: Recording) -> dict[str, Any]:
        """Return graph value -> array for everything but the inputs of RECORDING."""
        values = Values(recording.constants) if self.schemes else dict(recording.constants)
        for slot in [*self.slots.values(), *(slot for _, slot in self.sums.values())]:
            values.update((name, self.locations[name].get()) for name in slot.parameters)
        if not self.schemes and not self.sums:
            for value, location, dtype in self._plain_reads(recording):
                values[value] = cast(location.get(), dtype)
            return values
        for value, name in recording.reads.items():
            dict.__setitem__(values, value, self.value(name))
            if self.sums and self.first(name) in self.sums:
                values[value] = summed(values[value], values, self.sums[self.first(name)][1])
        return values

    def _plain_reads(self, recording: Recording) -> list[tuple[str, Location, mx.Dtype]]:
        """Return graph value -> where its array lives and the dtype that the graph has it in, found out once."""
        if id(recording) not in self._reads:
            named = ((value, *recording.names[it]) for value, it in recording.reads.items())
            self._reads[id(recording)] = [
                (value, self.locations[first], mlx_dtype(dtype)) for value, first, dtype in named
            ]
        return self._reads[id(recording)]

    def follow(self, other: Wiring) -> None:
        """Hold everything where OTHER holds it."""
        self.locations, self.slots, self.sums = other.locations, other.slots, other.sums
        self.schemes, self.trained = other.schemes, other.trained
        self.changed()

    def changed(self) -> None:
        """Forget what was made so far of what is wired now."""
        self._graphs.clear()
        self._reads.clear()

    def graph(self, recording: Recording, *, whole: bool = False) -> Graph:
        """Return the graph of RECORDING with adapters and quantized weights in its steps.

        Wanted WHOLE, it computes what sites leave, too, and its segments are no single steps.
        """
        key = id(recording), whole
        if key not in self._graphs:
            made = self._made(recording)
            slots = {
                value: self.slots[it] for value, it in recording.reads.items() if it in self.slots
            }
            self._graphs[key] = made if whole else segmented(made.lean(), self.segments, slots)
        return self._graphs[key]

    def _made(self, recording: Recording) -> Graph:
        reads: Mapping[str, str] = recording.reads
        slots = {value: self.slots[name] for value, name in reads.items() if name in self.slots}
        names = [value for value, name in reads.items() if self.first(name) in self.schemes]
        runs = quantized_runs(recording.graph, names)

        def rewrite(step: Step) -> Run | None:
            run = runs.get(step.name)
            return adapted(step, run or step.run, slots) or run

        return recording.graph.rewritten(rewrite)
