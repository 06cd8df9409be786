"""A quantized model against the one that its codes come from: what was kept, what moved, what loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...converters.checkpoints.derived import Overlay
from ...converters.models import Model
from ...converters.planning.conversion import conversion_of
from ...converters.planning.job import plan_job
from ...converters.planning.manifest import manifest_of
from ...converters.planning.transcoding import RECORDED, as_recorded, is_quantized
from ...converters.planning.view import converted_view
from ...converters.quantization import Dequantized
from ...parity.check.verdict import Stage, Verdict
from ...parity.quantized.moved import moved_stage
from ..checking import compare


def compare_quantized(reference: Model, candidate: Model, **how: Any) -> Verdict:
    """Compare CANDIDATE, quantized and seen dense, with REFERENCE; HOW as ``compare`` takes it.

    Where the candidate's manifest says that a format moved weights, each must lie where it says; the rest
    of the check is then against the reference with these weights where the candidate has them.
    """
    from ...parity.quantized.loaded import loaded_stage

    moved, stage = as_moved(as_recorded(reference, candidate), candidate)
    verdict = compare(moved, candidate, **how)
    verdict = verdict.preceded_by(stage) if stage else verdict
    return verdict.preceded_by(loaded_stage(candidate))


def as_moved(reference: Model, candidate: Model) -> tuple[Model, Stage | None]:
    """Return REFERENCE with the weights that CANDIDATE says it moved, and whether they lie there."""
    recorded = manifest_of(candidate).get(RECORDED)
    losses = recorded.get("losses") if isinstance(recorded, Mapping) else None
    if not losses or not isinstance(losses, Mapping) or not is_quantized(reference):
        return reference, None
    source = reference.tensors
    assert isinstance(source, Dequantized)  # noqa: S101  (`is_quantized` was asked)
    there = converted_view(candidate, reference.framework).checkpoint
    stated = losses_by_names(candidate, reference.framework, losses)
    stated = {name: loss for name, loss in stated.items() if name in source.schemes}
    stage = moved_stage(source, there, stated)
    return replace(reference, tensors=Overlay(source, {n: there.read(n) for n in stated})), stage


def losses_by_names(candidate: Model, to: str, losses: Mapping[str, float]) -> dict[str, float]:
    """Return LOSSES, by names of CANDIDATE, by the names that the framework TO has."""
    if candidate.framework == to:
        return {name: float(loss) for name, loss in losses.items()}
    stated: dict[str, float] = {}
    for step in plan_job(conversion_of(replace(candidate, adapter=None), to)).plan.steps:
        some = [float(losses[name]) for name in step.source_names if name in losses]
        stated |= dict.fromkeys(step.target_names, max(some)) if some else {}
    return stated
