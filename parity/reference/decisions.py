"""What whole numbers that a model chooses say of its arithmetic: how little of a fault would choose others.

The place of a best score, an order or a comparison is equal or not; by how much arithmetic errs cannot be read from it.
So the source runs again with its inputs and what its layers give off at random: the size from which on
every run chooses otherwise somewhere is the smallest fault that would have shown. Numbers that rounding alone chooses
otherwise say nothing and are left aside, and so says an output that no such fault changes: a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Signature
from ...converters.runtimes.streamed.together import together
from ...converters.runtimes.torch import call
from ...converters.values import Array
from ..check.distances import select_tokens
from ..probes.probes import Probe, masks_of
from .reference import Outputs, arrays, feed
from .sensitivity import LARGE
from .several import RUNS, nudged, off_by

SIZES: Final = tuple(2.0**-at for at in (18, 15, 12, 9, 6, 4, 2, 1, 0))  # up to as much as itself


class Decided(NamedTuple):
    """What the whole numbers of one output of one probe would show.

    Attributes:
        numbers: how many there are.
        by_rounding: how many of them rounding alone chooses otherwise.
        size: the relative fault from which on some of the others differ for certain; 0 where none makes them.
    """

    numbers: int
    by_rounding: int
    size: float


def decided(
    module: nn.Module, signature: Signature, probes: Sequence[Probe], wanted: Sequence[Outputs]
) -> dict[str, dict[str, Decided]]:
    """Return for each probe and output how small a fault of MODULE would have changed its whole numbers.

    Nothing where there are others beside: these tell more.

    Args:
        module: the source, in float32.
        signature: names of inputs and outputs.
        probes: inputs.
        wanted: the float64 outputs, per probe.
    """
    rows = zip(probes, wanted, strict=True)
    if any(it.dtype.kind == "f" for row in wanted for it in row.values()):
        return {}
    return {probe.name: _of_probe(module, signature, probe, row) for probe, row in rows}


def _of_probe(
    module: nn.Module, signature: Signature, probe: Probe, wanted: Outputs
) -> dict[str, Decided]:
    masks = masks_of(signature, probe)
    changed = partial(_changed, module, signature, probe, wanted, masks)
    rounding = {name: it.any(0) for name, it in changed(unit_roundoff("float32")).items()}
    sizes = dict.fromkeys(rounding, 0.0)
    large = sum(it.numel() for it in module.parameters()) > LARGE
    for size in SIZES[2::3] if large else SIZES:
        if all(sizes.values()):
            break
        for name, found in changed(size).items():
            certain = (found & ~rounding[name]).any(1).all()
            sizes[name] = sizes[name] or (size if certain else 0.0)
    return {
        name: Decided(it.size, int(np.count_nonzero(it)), sizes[name])
        for name, it in rounding.items()
    }


def _changed(
    module: nn.Module,
    signature: Signature,
    probe: Probe,
    wanted: Outputs,
    masks: Mapping[str, Array | None],
    size: float,
) -> dict[str, Array]:
    """Return for each output which of its numbers change, shape (runs, numbers), where MODULE is off by SIZE."""
    names = tuple(port.name for port in signature.outputs)
    given = feed(signature, probe, "float32")
    with torch.no_grad(), off_by(module, size) as moved:
        once = partial(_call_moved, module, given, names, size)
        runs = [partial(moved, seed, partial(once, seed)) for seed in range(RUNS)]
        rows = arrays(signature, [probe] * RUNS, together(module, runs))

    def numbers(name: str, array: Array) -> Array:
        return select_tokens(array, masks.get(name)).ravel()

    return {
        name: np.stack([numbers(name, row[name]) != numbers(name, it) for row in rows])
        for name, it in wanted.items()
    }


def _call_moved(
    module: nn.Module,
    given: Mapping[str, torch.Tensor],
    names: tuple[str, ...],
    size: float,
    seed: int,
) -> dict[str, Any]:
    """Return what MODULE makes of GIVEN, off by up to SIZE of itself at random."""
    random = torch.Generator().manual_seed(RUNS + seed)
    near = {
        name: nudged(tensor, random, size) if tensor.is_floating_point() else tensor
        for name, tensor in given.items()
    }
    return call(module, near, names)
