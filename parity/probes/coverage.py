"""What probes can reach: sizes that both sides take, ids and positions that were used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...converters.models import Port, Signature
from ...converters.models.signature import Dimension
from .probes import Probe


def _narrower(port: Port, other: Port) -> Port:
    shape: tuple[Dimension, ...] = port.shape
    limits = dict(port.upper)
    for axis, (own, found) in enumerate(zip(port.shape, other.shape, strict=False)):
        if isinstance(found, int):
            shape = (*shape[:axis], found, *shape[axis + 1 :])
        elif isinstance(own, str):
            most = other.limit(found, 1 << 30)
            limits[own] = min(limits.get(own, 1 << 30), most)
    kept = {name: most for name, most in limits.items() if most < 1 << 30}
    return replace(port, shape=shape, upper=tuple(kept.items()))


def restrict(signature: Signature, other: Signature | None) -> Signature:
    """Return SIGNATURE with the fixed sizes and upper bounds of OTHER, input by input.

    >>> ids = Port("ids", "int64", ("batch", "sequence"), "token_ids", (("sequence", 512),))
    >>> fixed = Port("ids", "int32", (1, 128), "token_ids")
    >>> restrict(Signature((ids,), ()), Signature((fixed,), ())).inputs[0].shape
    (1, 128)
    """
    if other is None:
        return signature
    found = {port.name: port for port in other.inputs}
    inputs = tuple(_narrower(p, found[p.name]) if p.name in found else p for p in signature.inputs)
    return replace(signature, inputs=inputs)


def fits(signature: Signature, probe: Probe) -> bool:
    """Say whether every input of PROBE has a size that SIGNATURE allows."""
    return all(
        _size_fits(port, wanted, found)
        for port in signature.inputs
        if port.name in probe.inputs
        for wanted, found in zip(port.shape, probe.inputs[port.name].shape, strict=False)
    )


def _size_fits(port: Port, wanted: Dimension, found: int) -> bool:
    return found == wanted if isinstance(wanted, int) else found <= port.limit(wanted, 1 << 30)


def gaps(signature: Signature, probes: Sequence[Probe]) -> list[str]:
    """Return what no probe reached, in words."""
    if not probes:
        return ["no probe was run"]
    found = []
    for port in signature.inputs:
        if port.role == "token_ids":
            found += _token_gaps(port, [probe.inputs[port.name] for probe in probes])
    return found


def _token_gaps(port: Port, arrays: Sequence[np.ndarray]) -> list[str]:
    used = len(np.unique(np.concatenate([array.ravel() for array in arrays])))
    vocabulary, longest = port.limit("vocabulary", 0), max(array.shape[-1] for array in arrays)
    limit = port.limit(str(port.shape[-1]), 0)
    found = []
    if vocabulary > used:
        found.append(
            f"outputs of {vocabulary - used:,} of {vocabulary:,} vocabulary rows"
            " (their weights: see fingerprints)"
        )
    if limit > longest:
        found.append(f"outputs at positions {longest:,} to {limit - 1:,}")
    return found
