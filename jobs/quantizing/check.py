"""Check a quantized model: its codes against the source, and what its class computes with them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models import Model
from ...converters.models import open as open_model
from ...converters.planning.view import converted_view, dense_view
from ...converters.quantization import Dequantized
from ...errors import WeighbridgeError
from ...parity.check.verdict import Stage, Verdict, decide
from ...parity.quantized.dequantized import dequantized_stage
from ..checking import compare
from ..options import Options
from ..pipeline import Checked
from . import figures
from .plan import Plan
from .weights import Comparison

MEANING = (
    "{candidate} holds the codes of {reference}, and its class computes with them as PyTorch does in"
    " float64 with what they stand for. What the rounding changed in the outputs is not asked."
)


def check(
    plan: Plan, folder: Path, target: Path, options: Options, suited: Collection[str] = frozenset()
) -> Checked:
    """Compare FOLDER, to be published as TARGET, with the source of PLAN.

    Codes of the weights SUITED were chosen for their inputs.
    """
    from ...parity.quantized.loaded import loaded_stage

    written = replace(opened(folder), spec=str(target))
    tensors = written.tensors
    assert isinstance(tensors, Dequantized)  # noqa: S101  (its config says how it is quantized)
    comparison = Comparison(plan, tensors, suited)
    stages = [comparison.run()]
    provenance = described(plan, target, options)
    if stages[-1].status == "pass":
        ran = computed(plan, written, options)
        stages += [dequantized_stage(tensors), loaded_stage(written), *ran.stages]
        provenance = {**ran.provenance, **provenance}
    verdict = Verdict(decide(stages, "mlx"), tuple(stages), provenance=provenance)
    found = figures.facts_of(plan.sizes, plan.schemes, comparison.errors, "all numbers")
    return Checked(verdict, {"quantized": found} if comparison.errors else {})


def opened(folder: Path) -> Model:
    """Return the model in FOLDER, its weights seen dense."""
    return dense_view(with_torch_side(open_model(folder)))


def described(plan: Plan, target: Path, options: Options) -> dict[str, Any]:
    """Return what was compared, and how."""
    return {
        "reference": {"spec": plan.job.model.spec},
        "candidate": {"spec": str(target)},
        "pass means": MEANING,
        "level": "quick" if options.quick else "full",
    }


def computed(plan: Plan, written: Model, options: Options) -> Verdict:
    """Run WRITTEN with what its codes stand for, against the source's own code with the same numbers.

    Text and configuration are the source's own too.
    """
    source = plan.job.model
    try:
        origin = str(source.path) if source.framework == "torch" else options.original
        numbers = converted_view(written, source.framework or "mlx", origin)
        reference = replace(source, tensors=numbers.tensors)
        verdict = compare(reference, written, quick=options.quick)
    except WeighbridgeError as error:
        return Verdict("", (Stage("structure", "unverified", f"cannot run it here: {error}"),))
    return replace(verdict, stages=tuple(it for it in verdict.stages if it.name != "fingerprints"))
