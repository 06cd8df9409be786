"""The smallest fault that a stage would have caught on this model: what its bound means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...converters.common.dtypes import unit_roundoff
from ..goldens.golden import Golden
from ..probes.probes import Probe
from ..reference.floors import Floor
from ..weights.reference_index import Explanation
from ..weights.smallest import smallest_change
from ..weights.weights import base_weights
from .candidate import Candidate
from .distances import Distance
from .verdict import Stage

MEASURED: Final = frozenset(
    {"structure", "precision"}
)  # others compare other runs than were perturbed
AGAIN: Final = "the source runs several times before a candidate differs"


def caught_from(floor: Floor, own: Distance, slope: Distance) -> float:
    """Return the least relative fault of a layer whose outputs alone are beyond the bound.

    A candidate's own rounding may hide as much of it, so a fault of twice the size is always caught.

    Args:
        floor: of the runtime.
        own: the source's own error.
        slope: change of the output for one of the layer's.

    >>> caught_from(Floor(2.0, 4.0, 0.0, 2.0, 9), Distance(1e-6, 1e-6), Distance(0.5, 2.0))
    2e-06
    """
    least = floor.c * unit_roundoff(floor.dtype)
    bounds = (floor.k * max(own.whole, least), floor.k_token * max(own.worst, least))
    return min(
        bound / moved if moved else float("inf") for bound, moved in zip(bounds, slope, strict=True)
    )


def with_smallest(
    stage: Stage,
    golden: Golden,
    probes: Sequence[Probe],
    calibration: tuple[Floor, Sequence[Mapping[str, Distance]]],
    *,
    once: bool = False,
) -> Stage:
    """Return STAGE, which passed, with the smallest fault that it would have caught.

    Args:
        stage: a comparison of outputs.
        golden: recorded how outputs move with a layer; of an older one nothing is said.
        probes: those that were compared.
        calibration: floor, and the source's own errors per probe.
        once: whether these are of one run, and of several before anything differs.
    """
    about: Mapping[str, Any] = golden.provenance.get("slopes") or {}
    at = next((i for i, it in enumerate(probes) if it.name == about.get("probe")), None)
    if stage.status != "pass" or at is None or stage.name not in MEASURED:
        return stage
    floor, errors = calibration
    sizes = [
        caught_from(floor, errors[at][name], Distance(*slope))
        for name, slope in about["outputs"].items()
        if name in errors[at]
    ]
    size, what = min(sizes, default=float("inf")), f"the output of {about['site'] or 'the whole'}"
    return in_words(stage, size, what, f", or more ({AGAIN})" if once else "")


def with_smallest_change(
    stage: Stage, golden: Golden, candidate: Candidate, explanations: Sequence[Explanation]
) -> Stage:
    """Return STAGE of the weights, if it passed, with the smallest change that it would have named."""
    if stage.status != "pass" or candidate.program is not None:
        return stage
    read = base_weights(golden.model).read if golden.model else None
    found = smallest_change(golden.sketches, candidate.weights, explanations, read)
    return in_words(stage, found.size, f"an element of {found.name}") if found else stage


def in_words(stage: Stage, size: float, what: str, more: str = "") -> Stage:
    """Return STAGE with the smallest fault, WHAT off by SIZE relative to itself, in words and figures.

    MORE is added where the bound is not the last word.
    """
    words = (
        f"smallest fault that this stage would have caught: {what} off by {size:.2g}{more}"
        if size < 1
        else f"{what} may be off by as much as itself unseen"
    )
    figures = {**stage.figures, "smallest_fault": {"what": what, "size": size}}
    return stage._replace(detail=f"{stage.detail}; {words}", figures=figures)
