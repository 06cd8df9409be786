"""How far outputs move when one layer's output is off: what tells the smallest fault that shows.

A layer in the middle is scaled by 1 + e in the source's own float32 run, for two sizes of e; the outputs
move in proportion. A bound on their error then says which e is the first to exceed it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from ...converters.models import Signature
from ...converters.runtimes.streamed.together import together
from ...converters.runtimes.torch import call, first_tensor, replace_first
from ...converters.values import Array
from ..check.distances import Distance, distance
from ..probes.probes import Probe, masks_of
from .reference import Outputs, arrays, feed

SIZES: Final = (2.0**-7, 2.0**-10)  # far above float32's rounding, small enough to be in proportion
LARGE: Final = (
    1 << 26
)  # parameters from which on one size is tried: each runs the whole model again


def middle_site(module: nn.Module) -> str:
    """Return the path of the layer in the middle of MODULE; of a leaf where nothing is numbered.

    >>> middle_site(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))
    '1'
    """
    paths = [path for path, _ in module.named_modules() if path]
    numbered = [path for path in paths if path.rpartition(".")[2].isdigit()]
    least = min((path.count(".") for path in numbered), default=0)
    layers = [path for path in numbered if path.count(".") == least]
    leaves = [path for path, child in module.named_modules() if path and not [*child.children()]]
    found = layers or leaves or paths
    return found[len(found) // 2] if found else ""


class Scaled:
    """A hook that scales what a site returns, in the threads that ask for it."""

    def __init__(self) -> None:
        self.here = threading.local()

    def __call__(self, _: nn.Module, __: Any, out: Any) -> Any:
        """Return OUT with its first tensor scaled, or ``None`` to leave it."""
        size, tensor = getattr(self.here, "size", 0.0), first_tensor(out)
        if not size or tensor is None or not tensor.is_floating_point():
            return None
        return replace_first(out, tensor * (1 + size))

    def run(self, size: float, run: Any) -> Any:
        """Return what RUN does with the site off by SIZE."""
        self.here.size = size
        try:
            return run()
        finally:
            self.here.size = 0.0


def outputs_and_slopes(
    module: nn.Module, signature: Signature, probes: Sequence[Probe]
) -> tuple[list[Outputs], dict[str, Any]]:
    """Return MODULE's float32 outputs for each probe, and how far those of the first move.

    Args:
        module: in float32.
        signature: names of inputs and outputs.
        probes: inputs; all runs share each reading of weights that are on disk.

    Returns:
        Outputs per probe, and the site that was scaled, the probe, and for each output its relative
        change (whole, worst token) for one of the site's; the site of a module without others is
        itself, ``""``.
    """
    names, site, scaled = (
        tuple(port.name for port in signature.outputs),
        middle_site(module),
        Scaled(),
    )
    feeds = [feed(signature, probe, "float32") for probe in probes]
    runs = [partial(call, module, tensors, names) for tensors in feeds]
    sizes = SIZES[: 1 if sum(it.numel() for it in module.parameters()) > LARGE else None]
    moved = [partial(scaled.run, size, runs[0]) for size in sizes]
    handle = module.get_submodule(site).register_forward_hook(scaled)
    try:
        with torch.no_grad():
            results = together(module, [*runs, *moved])
    finally:
        handle.remove()
    rows = arrays(signature, [*probes, *([probes[0]] * len(moved))], results)
    found, changed = rows[: len(probes)], rows[len(probes) :]
    masks = masks_of(signature, probes[0])
    slopes = {name: [*it] for name in names if (it := _slope(name, found[0], changed, masks))}
    about = {"site": site, "probe": probes[0].name, "outputs": slopes}
    return found, about if slopes else {}


def _slope(
    name: str, base: Outputs, changed: Sequence[Outputs], masks: Mapping[str, Array | None]
) -> Distance | None:
    """Return the change of output NAME for one of the site's: the least of those found."""
    if base[name].dtype.kind != "f" or not np.isfinite(base[name]).all():
        return None
    rows = zip(changed, SIZES, strict=False)
    found = [(distance(row[name], base[name], masks.get(name)), size) for row, size in rows]
    whole, worst = (min((it[part] / size for it, size in found), default=0.0) for part in (0, 1))
    return Distance(whole, worst) if math.isfinite(whole + worst) else None
