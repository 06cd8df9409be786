"""Adapters trained for a merge into few bits: which grids their weights are rounded to, in every update.

The grid of a quantized weight is where the values of its codes lie: scales and biases stay, codes move.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ..converters.planning.opening import open as open_model
from ..converters.quantization import Blocks, Dequantized
from ..converters.quantization.fingerprints import grid_fingerprint, grid_fingerprints
from ..converters.quantization.kept import grid_of
from ..converters.values import Array
from ..errors import MismatchError
from .objectives.base import Objective

OFF: Final = (
    2.0  # times as far as the nearest codes: calibration moves codes, another model by far more
)


class Grids(NamedTuple):
    """Quantized weights whose scales and biases sums of weights and updates are rounded by.

    Attributes:
        blocks: by torch name.
        tensors: the model that they are of; ``None`` where it has no directory.
        original: the model whose weights the updates are added to; empty for the values of the codes.
    """

    blocks: Mapping[str, Blocks] = {}  # never written to
    tensors: Dequantized | None = None
    original: str = ""

    def recorded(self, names: Collection[str]) -> dict[str, str]:
        """Return what tells the grids of those of the weights NAMES that are rounded, by their own names."""
        if self.tensors is None or not self.blocks:
            there = self.blocks.keys() & set(names)
            return {name: grid_fingerprint(self.blocks[name]) for name in sorted(there)}
        return grid_fingerprints(self.tensors, [it for it in names if it in self.tensors.schemes])

    def begun(self, objective: Objective) -> Objective:
        """Return OBJECTIVE; what it compares with, its ``reference``, has the rounded weights that a run begins with."""
        if not self.original:
            return objective
        makes = objective.make_loss, objective.make_evaluated
        loss, evaluated = (make and partial(_begun, make, self.blocks) for make in makes)
        return replace(objective, make_loss=loss or objective.make_loss, make_evaluated=evaluated)


def grids_of(wanted: bool | Path, module: Any, names: Collection[str], own: Grids) -> Grids:
    """Return the grids that the updates of the weights NAMES are trained for.

    Args:
        wanted: ``quantize_aware`` of the configuration. Weights of MODULE become those of the model that
            it names.
        module: the torch module.
        names: of the weights that adapters change.
        own: the quantized weights of the model itself.

    Raises:
        MismatchError: there are none among NAMES, or the model that WANTED names is not what they were
            made from.
    """
    if not wanted:
        return Grids()
    blocks = {name: it for name, it in own.blocks.items() if name in names}
    if not blocks:
        raise MismatchError(
            "adapter.quantize_aware: nothing that adapters change is quantized; let model name the MLX"
            " directory that the adapter will be merged into, adapter.quantize_aware what that was made from",
            sorted(names),
        )
    if not isinstance(wanted, Path):
        return Grids(blocks, own.tensors)
    weights = _weights(wanted, blocks)
    if problems := [*_misfits(blocks, weights)]:
        raise MismatchError(f"{wanted} is not what the quantized weights were made from", problems)
    for name, parameter in module.named_parameters():
        if name in weights:
            parameter.data.copy_(weights[name])
    return Grids(blocks, own.tensors, str(wanted))


def _begun(make: Callable[[Any], Any], blocks: Mapping[str, Blocks], model: Any) -> Any:
    """Return what MAKE makes of MODEL; in its copy of that the weights of BLOCKS are rounded."""
    module = make(model)
    own = dict(module.reference.named_parameters()) if hasattr(module, "reference") else {}
    for name in blocks.keys() & own.keys():
        narrow = grid_of(blocks[name]).narrow()
        own[name].data = own[name].new_tensor(narrow.rounded(own[name].numpy(), np))
    return module


def _weights(original: Path, names: Collection[str]) -> dict[str, Any]:
    """Return of the weights NAMES, by torch name, those that ORIGINAL has."""
    from ..converters.maps.sources.torch_side import with_torch_side
    from ..converters.runtimes.torch import build_module

    module = build_module(with_torch_side(open_model(str(original))))
    return {name: it.detach() for name, it in module.named_parameters() if name in names}


def _misfits(blocks: Mapping[str, Blocks], weights: Mapping[str, Any]) -> Iterator[str]:
    """Say which of BLOCKS are no quantized form of the dense WEIGHTS."""
    for name, block in sorted(blocks.items()):
        weight: Array = weights[name].double().numpy() if name in weights else np.zeros(0)
        if weight.shape != block.shape:
            yield f"{name}: expected {list(block.shape)}, found {list(weight.shape)}"
            continue
        least = np.linalg.norm(grid_of(block).rounded(weight, np) - weight)
        apart, size = np.linalg.norm(block.values() - weight), np.linalg.norm(weight)
        if not apart <= OFF * least + 1e-6 * size:
            yield f"{name}: {apart / size:.1%} away, where the nearest codes would be {least / size:.1%}"
