"""Adapters that were trained by rounded weights: a merge stores what they were trained by."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ...converters.adapters.merging.affected import AffectedWeight
from ...converters.adapters.open import GRIDS, ORIGINAL
from ...converters.checkpoints import Checkpoint, Header
from ...converters.checkpoints.derived import Derived
from ...converters.models import Model
from ...converters.quantization import Dequantized
from ...converters.quantization.fingerprints import grid_fingerprints
from ...converters.values import Array
from ...errors import MismatchError
from ..provenance.base import unrounded


def trained_rounded(
    model: Model, tensors: Dequantized, original: Model | None = None
) -> frozenset[str]:
    """Return the weights of TENSORS by whose very scales sums were rounded when MODEL's adapter was trained.

    There are none where it was trained on the values of the codes, and is merged into ORIGINAL.

    Raises:
        MismatchError: it was trained on an original, and none is given.
    """
    record = model.adapter.base if model.adapter else {}
    recorded, trained_on = record.get(GRIDS) or {}, record.get(ORIGINAL)
    found = grid_fingerprints(tensors, [name for name in recorded if name in tensors.schemes])
    same = frozenset(name for name in found if found[name] == recorded[name])
    if same and trained_on and original is None:
        raise MismatchError(
            "the adapter was trained on the weights that the base was made from; name them:"
            f" --original {trained_on}",
            sorted(same),
        )
    return same if (original is None) == (not trained_on) else frozenset()


def grids_note(model: Model, rounded: Collection[str]) -> list[str]:
    """Say what is measured of updates that were trained by rounded weights: those of ROUNDED by the base's."""
    others = unrounded(model.adapter, rounded) if model.adapter else ""
    notes = [f"{others}; merged as any other"] if others else []
    if not rounded:
        return notes
    how = "codes alone move, and what has to be there is the rounded sum"
    there = f"{len(rounded)} layers were trained by sums rounded to the scales of this base: {how}"
    return [there, *notes]


class AsTrained(Derived):
    """CHECKPOINT, a base, with LAYERS as they were trained: rounded where they are to be."""

    def __init__(self, checkpoint: Checkpoint, layers: Mapping[str, AffectedWeight]) -> None:
        self._layers = layers
        changed = {name: Header("F32", it.shape) for name, it in layers.items()}
        super().__init__(checkpoint, {**checkpoint.headers, **changed})

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        if name not in self._layers:
            return super().read(name)
        layer, whole = self._layers[name], np.empty(self.headers[name].shape, np.float32)
        for block in layer.encoded(layer.own):
            whole[block.place] = block.wanted
        return whole

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME."""
        own = name not in self._layers
        yield from self._own.stream(name, start, stop) if own else super().stream(name, start, stop)
