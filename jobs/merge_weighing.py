"""Weigh a merge into a quantized base: do its outputs follow those of the live adapter?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..converters.models import Model
from ..converters.policy import Policy
from ..converters.runtimes import load
from ..converters.runtimes.base import Arrays, Trace
from ..converters.values import Array
from ..errors import WeighbridgeError
from .adapter_weighing import probes_of
from .options import Options
from .tally import ENOUGH

if TYPE_CHECKING:
    from ..parity.probes import Probe
    from ..parity.verdict import Stage, Verdict
    from .merging import Merge

# The largest relative error of an update whose gain is 1.1 and whose cosine is 0.9, the worst that
# passes: |real - want|^2 / |want|^2 = 1 - 2 gain + (gain / cosine)^2.
BAR: Final = math.sqrt(1 - 2 * 1.1 + (1.1 / 0.9) ** 2)
DROPPED: Final = 1.0  # as far from the live adapter as the base without one


class Recorded:
    """The outputs of a model on some inputs, after the model itself was let go."""

    runtime = "mlx"

    def __init__(self, model: Model, probes: Sequence[Probe]) -> None:
        runner = load(model, "mlx", Policy())
        self.signature, self._about = model.signature, runner.describe()
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


def weigh_merge(job: Merge, written: Model, options: Options) -> Verdict:
    """Weigh WRITTEN, the result of JOB, seen dense: how much survived, and what it computes."""
    from ..parity.text import compare_sides, read_text_side
    from ..parity.verdict import Verdict, decide

    sides = (read_text_side(it.path) for it in (job.model, written))
    figures: dict[str, Any] = {}
    stages = [
        compare_sides(*sides),
        survival_stage(job),
        *functional(job, written, options, figures),
    ]
    level = "quick" if options.check == "quick" else "full"
    provenance = {"level": level, "figures": figures}
    return Verdict(decide(stages, "mlx"), tuple(stages), provenance=provenance)


def survival_stage(job: Merge) -> Stage:
    """Return the stage that says how many updates are in the weights."""
    from ..parity.verdict import Stage

    whole, lost = len(job.chosen), len(job.lost)
    if lost:
        said = f"the adapter is lost in {lost} of {whole} layers, which --force allowed"
        return Stage("fingerprints", "unverified", said)
    weak = sum(it.verdict != ENOUGH for it in job.chosen.values())
    said = f"{whole} of {whole} updates are in the stored weights"
    return Stage("fingerprints", "pass", said + (f", {weak} of them weakly" if weak else ""))


def functional(
    job: Merge, written: Model, options: Options, figures: dict[str, Any]
) -> list[Stage]:
    """Run base, live adapter and result; FIGURES gets how far their outputs are apart."""
    from ..parity.verdict import Stage

    try:
        probes = probes_of(job.model, options)
        figures |= measured(job, written, probes)
    except WeighbridgeError as error:
        return [Stage("structure", "unverified", f"the class cannot run here: {error}")]
    return [judged(figures, forced=bool(job.lost))]


def measured(job: Merge, written: Model, probes: Sequence[Probe]) -> dict[str, float]:
    """Return the figures; one model is in memory at a time, in float32.

    ``merge`` is the distance of the result from the live adapter, on the original where the merge
    was into that; ``effect`` is how far the adapter moves its base; ``change of base``, there,
    how far the live adapter on the quantized base is from the one on the original.
    """
    from ..converters.runtimes.live import live_difference

    live = Recorded(job.reference, probes)
    bare = Recorded(replace(job.reference, adapter=None), probes)
    found = {
        "merge": live_difference(live, Recorded(written, probes), probes),
        "effect": live_difference(bare, live, probes),
    }
    if job.prices:
        found["change of base"] = live_difference(live, Recorded(job.model, probes), probes)
    return found


def judged(figures: dict[str, Any], *, forced: bool) -> Stage:
    """Judge the FIGURES of a merge; FORCED says that the user wanted it whatever it is."""
    from ..parity.verdict import Stage

    error, effect, other = figures["merge"], figures["effect"], figures.get("change of base")
    said = f"merged against live: relative error {error:.1e}, the adapter's effect {effect:.1e}"
    if other is not None:
        said += f"; the live adapter on the quantized base is {other:.1e} away"
    if not effect:
        same = "pass" if not error else "fail"
        return Stage("structure", same, f"{said}: there is nothing to lose", figures)
    ratio = error / effect
    status = "pass" if ratio <= BAR else "unverified"
    if ratio >= DROPPED and not forced:
        status = "fail"
    said += f"; the error is {ratio:.0%} of the effect (limit {BAR:.0%})"
    return Stage("structure", status, said, figures)
