"""How far apart two live models are, on inputs that both run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ..values import Array
from .base import Arrays, Runner

MASK = "attention_mask"  # the role of an input that says which positions count


class Fed(Protocol):
    """A set of inputs, such as ``parity.probes.Probe``."""

    @property
    def inputs(self) -> Arrays:
        """The inputs by port name."""
        ...


def live_difference(reference: Runner, candidate: Runner, probes: Iterable[Fed]) -> float:
    """Return the largest ``||y' - y|| / ||y||`` over outputs and PROBES, in float64.

    Positions that an attention mask of the inputs excludes are left aside. With a bare model as
    REFERENCE and the same one with an adapter as CANDIDATE it is the adapter's effect, and two
    adapters that have none agree whatever they are: report it beside every difference.

    Args:
        reference: computes y.
        candidate: computes y', with outputs of the same names and shapes.
        probes: what both run on.

    Returns:
        The figure; infinite where outputs differ in names or in shape, where an element that counts is
        not finite, or where there are none.
    """
    worst = None
    for probe in probes:
        wanted, found = reference.run(probe.inputs), candidate.run(probe.inputs)
        if wanted.keys() != found.keys():
            return math.inf
        mask = mask_of(reference, probe.inputs)
        errors = [relative(counted(wanted[n], mask), counted(found[n], mask)) for n in wanted]
        worst = max([*errors, worst or 0.0])
    return math.inf if worst is None else worst


def relative(wanted: Array, found: Array) -> float:
    """Return ``||FOUND - WANTED|| / ||WANTED||``.

    >>> relative(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    0.1
    """
    if wanted.shape != found.shape:
        return math.inf
    if not (np.isfinite(wanted).all() and np.isfinite(found).all()):
        return math.inf  # nothing is known of what is not finite, on both sides alike or not
    gap, size = float(np.linalg.norm(found - wanted)), float(np.linalg.norm(wanted))
    return gap / size if size else (math.inf if gap else 0.0)


def mask_of(runner: Runner, inputs: Arrays) -> Array | None:
    """Return the attention mask among INPUTS, which RUNNER's signature tells."""
    signature: Any = getattr(runner, "signature", None)
    ports = signature.inputs if signature else ()
    return next((inputs[p.name] for p in ports if p.role == MASK and p.name in inputs), None)


def counted(output: Array, mask: Array | None) -> Array:
    """Return the elements of OUTPUT at positions that MASK counts, in float64."""
    wide = np.asarray(output, np.float64)
    if mask is None or wide.shape[: mask.ndim] != mask.shape:
        return wide
    return np.asarray(wide[mask != 0])
