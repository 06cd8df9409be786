"""Check a merge into a quantized base: do its outputs follow those of the live adapter?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...converters.adapters.merging.statistics import ENOUGH, ERASED
from ...converters.adapters.merging.survival import judge
from ...converters.common.memory import pass_on_shortage
from ...converters.common.policy import Policy
from ...converters.models import Model
from ...converters.planning.view import converted_view
from ...converters.runtimes import Runner, load
from ...converters.runtimes.base import Arrays, Trace
from ...converters.runtimes.live import live_difference
from ...converters.values import Array
from ...errors import MismatchError, WeighbridgeError
from ...parity.check.verdict import Stage, Verdict, decide
from ..adapter_check import probes_of, run_of
from ..options import Options
from .plan import Merge
from .remeasure import Kept, remeasured
from .rounded import AsTrained

if TYPE_CHECKING:
    from ...parity.probes.probes import Probe

# The largest relative error of an update whose gain is 1.1 and whose cosine is 0.9, the worst that
# passes: |real - want|^2 / |want|^2 = 1 - 2 gain + (gain / cosine)^2.
MEANING: Final = "{candidate} does what {reference} does, as far as its bits hold it: what the rounding took is reported below."
BAR: Final = math.sqrt(1 - 2 * 1.1 + (1.1 / 0.9) ** 2)
STILL: Final = 1e-5  # what float32 makes of one model in two frameworks, or of magnitudes of DoRA
SHOWN: Final = 8  # problems in one line
# As far from the live adapter as the base without one, its own error left aside.
DROPPED: Final = 1.0


class Recorded:
    """The outputs of a model on some inputs, after the model itself was let go."""

    def __init__(self, model: Model, runner: Runner, probes: Sequence[Probe]) -> None:
        self.runtime, self.signature = runner.runtime, model.signature
        self._about = runner.describe()
        self._outputs = {id(probe.inputs): runner.run(probe.inputs) for probe in probes}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return what was recorded of INPUTS."""
        return self._outputs[id(inputs)]

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:  # noqa: ARG002
        """Return the outputs; no sites were recorded."""
        return Trace(self.run(inputs))

    def describe(self) -> dict[str, str]:
        """Return what ran."""
        return self._about


def check_merge(job: Merge, written: Model, options: Options) -> Verdict:
    """Compare WRITTEN, the result of JOB, dequantized: how much survived, and what it computes."""
    from ...parity.text.compare import compare_sides
    from ...parity.text.side import read_text_side

    text = read_text_side(job.model.path)
    figures: dict[str, Any] = {}
    kept = remeasured(job, written)
    stages = [
        compare_sides(text, read_text_side(written.path, text)),
        survival_stage(job, kept),
        *functional(job, written, options, figures, moved=bool(kept.moved) or job.requantizes_all),
    ]
    level = "quick" if options.quick else "full"
    provenance = {
        "reference": {"spec": job.reference.spec},
        "candidate": {"spec": written.spec},
        "pass means": MEANING,
        "level": level,
        "figures": figures,
    }
    return Verdict(decide(stages, "mlx"), tuple(stages), provenance=provenance)


def survival_stage(job: Merge, kept: Kept) -> Stage:
    """Return the stage that says how many updates are in the weights, measured again from the file."""
    if kept.problems:
        count, some = len(kept.problems), "; ".join(kept.problems[:SHOWN])
        detail = f"the file is not what the merge reported, {count} differences: {some}"
        return Stage("fingerprints", "fail", detail)
    judged = {name: judge(it) for name, (_, it) in kept.moved.items()}
    whole, lost = len(judged), {*job.lost, *(name for name in judged if judged[name] == ERASED)}
    if lost:
        detail = f"the adapter is lost in {len(lost)} of {whole} layers, which --force allowed"
        return Stage("fingerprints", "unverified", detail)
    weak = sum(it != ENOUGH for it in judged.values())
    detail = f"{whole} of {whole} updates are in the stored weights"
    detail = detail if whole else "the updates change no weight"
    detail += f", {weak} of them weakly" if weak else ""
    detail += f", measured again from the file; {kept.alike} other tensors are the base's bytes"
    return Stage("fingerprints", "pass", detail)


def functional(
    job: Merge, written: Model, options: Options, figures: dict[str, Any], *, moved: bool
) -> list[Stage]:
    """Run base, live adapter and result; FIGURES gets how far their outputs are apart."""
    try:
        who, found = measured(job, written, options)
        figures |= found
    except WeighbridgeError as error:
        return [Stage("structure", "unverified", f"cannot run the sides here: {error}")]
    stage = judged(figures, forced=bool(job.lost), moved=moved)
    return [stage._replace(detail=f"{stage.detail}; {who}")]


def measured(job: Merge, written: Model, options: Options) -> tuple[str, dict[str, float]]:
    """Return who loaded the live adapter, and the figures; one model is in memory at a time.

    All run in float32. ``merge`` is the distance of the result from the live adapter, on the original where the merge
    was into that; ``effect`` is how far the adapter moves its base; ``change of base``, there,
    how far the live adapter on the quantized base is from the one on the original. Where sums were rounded
    in training the live adapter is that, and ``rounding`` how far it is from the one that rounds nothing.
    """
    probes, reference = probes_of(job.model, options), job.model if job.rounded else job.reference
    who, live = live_run(reference, probes, options)
    plain = live
    if job.rounded:
        layers = {name: job.layers[name] for name in job.chosen}
        there = AsTrained(job.model.checkpoint, layers)
        trained = replace(reference, adapter=None, tensors=there)
        live = Recorded(trained, load(trained, "mlx", Policy()), probes)
    bare = converted_view(replace(reference, adapter=None), live.runtime, options.original)
    without = Recorded(bare, load(bare, live.runtime, Policy()), probes)
    merged = Recorded(written, load(written, "mlx", Policy()), probes)
    found = {
        "merge": live_difference(live, merged, probes),
        "effect": live_difference(without, live, probes),
    }
    if job.rounded:
        found["rounding"] = live_difference(live, plain, probes)
    elif job.errors:
        other = live_run(job.model, probes, options)[1]
        found["change of base"] = live_difference(live, other, probes)
    return who, found


def live_run(model: Model, probes: Sequence[Probe], options: Options) -> tuple[str, Recorded]:
    """Run MODEL with its adapter live; return who loaded that, and the outputs.

    The loader of the adapter's own dialect shares nothing with ours; where it is not installed, or does
    not read this model, our own layers run.

    Raises:
        MismatchError: that loader leaves out or alters some of it, so that nobody knows what is meant.
    """
    assert model.adapter is not None  # noqa: S101  (it was merged)
    try:
        run = run_of(replace(model, adapter=None), model.adapter, options)
        if run.layout_check:
            return run.layout_check, Recorded(model, run.runner, probes)
        why = "no other loader reads it here"
    except MismatchError:
        raise
    except Exception as error:  # a library's own class may fail in any way
        pass_on_shortage(error)
        why = f"its own loader fails: {str(error).splitlines()[:1]}"
    detail = f"the live adapter was loaded by Weighbridge alone ({why})"
    return detail, Recorded(model, load(model, "mlx", Policy()), probes)


def judged(figures: dict[str, Any], *, forced: bool, moved: bool = True) -> Stage:
    """Judge the FIGURES of a merge.

    Args:
        figures: as ``measured`` returns them.
        forced: whether the user wanted the merge whatever it is.
        moved: whether it changed any weight.
    """
    error, effect, other = figures["merge"], figures["effect"], figures.get("change of base")
    detail = f"merged against live: relative error {error:.1e}, the adapter's effect {effect:.1e}"
    if (rounding := figures.get("rounding")) is not None:
        detail += f"; live as it was trained, by rounded weights, {rounding:.1e} from one that rounds none"
    if other is not None:
        detail += f"; the live adapter on the quantized base is {other:.1e} away"
    if not (math.isfinite(error) and math.isfinite(effect)):
        detail += "; outputs that are not finite show nothing"
        return Stage("structure", "unverified", detail, figures)
    if not moved and effect <= STILL and (error <= STILL or other is not None):
        return Stage("structure", "pass", f"{detail}: there is nothing to lose", figures)
    if not (effect and moved):
        detail += "; an adapter without effect on weights or outputs shows nothing"
        return Stage("structure", "unverified", detail, figures)
    ratio = error / effect
    status = "pass" if ratio <= BAR else "unverified"
    if error >= DROPPED * effect + (other or 0.0) and not forced:
        status = "fail"
    detail += f"; the error is {ratio:.0%} of the effect (limit {BAR:.0%})"
    return Stage("structure", status, detail, figures)
