"""A model's tensors as PyTorch names them: plain values, so that who runs a model needs no map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..checkpoints.arrays import FileArrays
from ..values import LowRank


class TorchSide(NamedTuple):
    """What PyTorch loads.

    Attributes:
        arrays: weights by the names of a torch checkpoint, read when they are asked for.
        updates: of the adapter, likewise.
        parameter_updates: returns the same under the names of the parameters of the class of
            transformers, which stacks experts, fuses projections and adds a prefix while it loads.
        recomputed: names that may be in a checkpoint although the module computes them.
    """

    arrays: FileArrays
    updates: Mapping[str, LowRank]
    parameter_updates: Callable[[], dict[str, LowRank]]
    recomputed: tuple[str, ...] = ()
