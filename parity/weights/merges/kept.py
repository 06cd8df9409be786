"""A source with the digits that a candidate keeps of sums: ``1 + w``, and base + update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ....converters.checkpoints.base import Checkpoint, Header
from ....converters.checkpoints.derived import Derived
from ....converters.models import Model
from ....converters.values import Array
from ..reference_index import Explanation
from ..sketches.sketch import Weights


class Place(NamedTuple):
    """Where a candidate keeps a tensor of the source.

    Attributes:
        tensor: the candidate's, explained.
        number: of the part of it; 0 where it is one.
    """

    tensor: Explanation
    number: int = 0


class Kept(Derived):
    """CHECKPOINT with what a candidate's WEIGHTS keep of its tensors, at PLACES, instead of these."""

    def __init__(
        self, checkpoint: Checkpoint, weights: Weights, places: Mapping[str, Place]
    ) -> None:
        self._places, self._read = (
            places,
            lru_cache(1)(weights.read),
        )  # parts of one follow each other
        headers = {
            name: checkpoint.headers[name]._replace(dtype=self._dtype(it, weights.headers))
            for name, it in places.items()
        }
        super().__init__(checkpoint, {**checkpoint.headers, **headers})

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        if name not in self._places:
            return self._own.read(name)
        it, number = self._places[name]
        kept = self._part(it, self._read(it.name), number)
        if it.amount is not None:
            kept = kept.astype(np.float64)
            kept = kept - it.amount if it.kind == "offset" else kept / it.amount
        return kept.reshape(self.headers[name].shape).copy()

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        if name in self._places:
            yield from super().stream(name, start, stop)
        else:
            yield from self._own.stream(name, start, stop)

    def _part(self, it: Explanation, array: Array, number: int) -> Array:
        """Return part NUMBER of ARRAY, which IT explains, as the source has it."""
        if it.along is None:
            one = it.axes is not None and len(it.axes) == array.ndim and it.amount is None
            return array.transpose(np.argsort(it.axes or ())) if one else array
        table: Array = np.moveaxis(array, it.along, 0)
        if it.kind == "stacked":
            return np.asarray(table[number].transpose(it.axes))
        first = self.headers[it.parts[number]].shape
        if len(first) < array.ndim:  # each index of the first axis is joined of several
            table = np.moveaxis(array, it.along, 1).reshape(-1, *first[1:])
        sizes = [self.headers[name].shape[0] for name in it.parts[: number + 1]]
        return table[sum(sizes[:-1]) :][: sizes[-1]]

    @staticmethod
    def _dtype(it: Place, headers: Mapping[str, Header]) -> str:
        return headers[it.tensor.name].dtype if it.tensor.amount is None else "F64"


def as_kept(model: Model, explanations: Sequence[Explanation], weights: Weights) -> Model | None:
    """Return MODEL with the weights that a candidate keeps scaled, offset or merged, as they are kept there.

    ``1 + w`` in 16 bits has fewer digits of ``w`` than ``w`` has, and base + update depends there on
    what was rounded before: MLX's classes that store the one and tools that merge in 16 bits compute
    something else than the source, however faithful the conversion is.

    Returns:
        The model, or ``None`` where no weight is kept that way.
    """
    updates = model.adapter.updates if model.adapter else {}
    places: dict[str, Place] = {}
    for it in explanations:
        if it.ok and it.amount is not None and it.source:
            places[it.source] = Place(it)
        elif it.ok and (it.kind == "merged" or it.along is not None):
            names = enumerate(it.parts or (str(it.source),))
            places |= {name: Place(it, number) for number, name in names if name in updates}
    if not places:
        return None
    left = {name: update for name, update in updates.items() if name not in places}
    adapter = replace(model.adapter, updates=left) if model.adapter else None
    return replace(model, tensors=Kept(model.checkpoint, weights, places), adapter=adapter)
