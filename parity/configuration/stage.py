"""The stage ``configuration`` of a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...converters.libraries import Target
from ...errors import WeighbridgeError
from ..check.stages import join
from ..check.verdict import Stage
from .settings import differences

if TYPE_CHECKING:
    from ..check.candidate import Candidate
    from ..goldens.golden import Golden

NAME = "configuration"


def running_class(candidate: Candidate) -> Target | None:
    """Return the class of an MLX library that runs CANDIDATE; ``None`` where transformers' code does."""
    model = candidate.model
    if candidate.runtime != "mlx" or model.family is None or model.family.map:
        return None
    from ...converters.runtimes.native import misfits

    return None if misfits(model) else model.library


def configuration_stage(golden: Golden, candidate: Candidate) -> Stage:
    """Say whether every setting that code reads is the same on both sides."""
    model = candidate.model
    if model.framework == "mlprogram":
        return Stage(NAME, "skipped", "an ML program holds its constants; its outputs show them")
    if model.factory is not None or not model.config:
        return Stage(NAME, "skipped", "the candidate is built by code, not by a configuration")
    wanted = golden.provenance.get("config")
    if not wanted:
        reason = "the reference is built by code, or its golden does not say its configuration"
        return Stage(NAME, "skipped", reason)
    reads = golden.provenance.get("config_reads", ())
    try:
        target = running_class(candidate)
        found = differences(wanted, reads, model, target)
    except WeighbridgeError as error:
        return Stage(NAME, "unverified", f"it could not be compared: {error}")
    if found:
        rows = [row._asdict() for row in found]
        return Stage(NAME, "fail", join([str(row) for row in found]), {"differences": rows})
    reader = str(target or f"transformers' {wanted.get('model_type')}")
    return Stage(NAME, "pass", f"{len(reads)} settings that code reads are the same; by {reader}")
