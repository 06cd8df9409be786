"""The candidate run on the probes of a golden, its errors measured against one of its recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Model
from ...converters.runtimes import Runner
from ...converters.runtimes.base import run_all
from ...converters.values import Array
from ..goldens.golden import Golden
from ..goldens.recorder import Recorder
from ..goldens.rounding import CONSTANTS, SCALARS
from ..packages.activations import activations_stage
from ..packages.ahead import Ahead
from ..packages.finite import finite_stage
from ..probes import coverage
from ..probes.probes import Probe, compared
from ..reference.floors import floor, studied_elsewhere
from ..weights.fingerprints import Explanation
from ..weights.merges.kept import as_kept
from ..weights.orders import shorten
from ..weights.weights import base_weights
from .batches import Ran, alone_of
from .candidate import Candidate, unrunnable
from .distances import Distance
from .recording import compared_storage
from .smallest import with_smallest
from .stages import (
    chosen_otherwise,
    error_stage,
    integers_alone,
    outputs_stage,
    share,
    unstudied,
)
from .verdict import Stage

Outputs = list[dict[str, Array]]


def within(stage: Stage, count: int) -> bool:
    """Say whether every error of STAGE is less than COUNT roundings to float16 may make."""
    room = count * unit_roundoff("float16")
    return max((row["error"] for row in stage.figures.get("rows", ())), default=room) < room


@dataclass
class Runs:
    """Runs of a candidate, and the recording that they are measured against.

    Attributes:
        golden: the reference.
        candidate: the judged side.
        quick: whether only the cheap questions are asked.
        unchecked: what the runs could not see, for the report.
        explanations: of the candidate's weights, once the fingerprints were compared.
        ran: what the candidate made of the probes in float32, once it was measured.
    """

    golden: Golden
    candidate: Candidate
    _: KW_ONLY
    quick: bool = False
    unchecked: list[str] = field(default_factory=list)
    explanations: Sequence[Explanation] = ()
    ran: Ran | None = None

    @cached_property
    def storage(self) -> str:
        """Which recording holds the candidate's weights: ``stored``, or rounded to a dtype."""
        put_back = bool(self.candidate.exact)  # its constants, to what they were before rounding
        return "stored" if put_back else compared_storage(self.golden.provenance, self.candidate)

    @cached_property
    def probes(self) -> tuple[int, ...]:
        """Indices of the golden's probes that the candidate's sizes allow."""
        signature = self.candidate.signature
        fitting = tuple(
            index
            for index, probe in enumerate(self.golden.probes)
            if signature is None or coverage.fits(signature, probe)
        )
        left_out = [p.name for i, p in enumerate(self.golden.probes) if i not in fitting]
        if left_out:
            self.unchecked.append(f"probes larger than the candidate takes: {', '.join(left_out)}")
        quick = (*fitting[:1], *(it for it in fitting[1:] if self.golden.probes[it].rows))
        return quick if self.quick and not self.candidate.program else fitting

    def structure(self) -> list[Stage]:
        """Run the candidate in float32 against float64."""
        if drawn := self.candidate.draws:
            reason = f"it draws numbers ({', '.join(drawn)}), and another run draws others"
            return [Stage("structure", "unverified", reason)]
        runner = self.candidate.structure
        if runner is None:
            reason = f"{self.candidate.runtime} cannot run this model in float32"
            return [Stage("structure", "unverified", reason)]
        if self.candidate.mixed and not self.candidate.exact:
            reason = "needs the source at hand: what the package rounds is known from it alone"
            return [Stage("structure", "unverified", reason)]
        if not self.recorded(self.storage):
            reason = f"the golden has no recording with {self.storage} weights; record it again"
            return [Stage("structure", "unverified", reason)]
        storage = self.storage
        stages = self.measure_variants("structure", runner, self.candidate)
        stages = [*stages[:-1], self.by_folding(stages[-1])]
        if stages[-1].status != "fail" or not self.candidate.rounds_activations:
            return stages
        return self.rounded(storage) or [*stages[:-1], self.by_scales(stages[-1])]

    def by_folding(self, stage: Stage) -> Stage:
        """Return the failed STAGE, unverified where constants that were computed in float16 may have made its error.

        An exporter computes what a half-precision module makes of its weights alone ahead of time, in half
        precision. Those of which it is known how are put back.
        """
        if stage.status != "fail" or self.candidate.storage != "float16":
            return stage
        folded = [*self.ahead.narrow, *self.ahead.lost]
        if not within(stage, len(folded)):
            return stage
        detail = f"computed in float16 ahead of time: {shorten(folded, 3)}; which may be why: {stage.detail}"
        return stage._replace(status="unverified", detail=detail)

    @property
    def ahead(self) -> Ahead:
        """What of the candidate may be computed ahead of time."""
        source = self.golden.model
        read = base_weights(source).read if source else None
        return Ahead(self.candidate, self.explanations, read)

    def by_scales(self, stage: Stage) -> Stage:
        """Return the failed STAGE, unverified where scales of 8-bit codes in float16 may have made its error.

        coremltools divides the scales of sums by one another and rounds that again, each time by half a unit at
        most; ours are as they were measured.
        """
        candidate = self.candidate
        program = candidate.program if candidate.rounds_activations else None
        foreign = candidate.shipped == "float16" and not candidate.manifest
        if stage.status != "fail" or not foreign or program is None:
            return stage
        if not within(stage, program.census["quantize"]):
            return stage
        detail = (
            f"scales of its 8-bit codes are rounded to float16, which may be why: {stage.detail}"
        )
        return stage._replace(status="unverified", detail=detail)

    def rounded(self, storage: str) -> list[Stage] | None:
        """Run the candidate in float32 with activations rounded; ``None`` if the source in STORAGE does it not."""
        other = replace(self.candidate, as_source=True)
        if (runner := other.structure) is None:
            return None
        stages = self.measure("structure", runner, storage, "float32")
        if stages[-1].status == "fail":
            return None
        self.candidate, self.storage = other, storage
        return stages

    def activations(self) -> list[Stage]:
        """Say what rounding activations to 8 bits costs, where the candidate does it and its source does not."""
        if not self.candidate.rounds_activations:
            return []
        probes = [self.golden.probes[index] for index in self.probes]
        return [activations_stage(self.candidate.declared, probes)]

    def precision(self) -> list[Stage]:
        """Run the candidate in the dtype that ships, against the source in that dtype."""
        shipped = self.candidate.shipped
        if self.candidate.draws:
            return []
        if shipped == "float32":
            return [Stage("precision", "skipped", "ships in float32, which structure covers")]
        runner = self.candidate.precision
        if runner is None or f"stored/{shipped}" not in self.golden.errors:
            unrecorded = f"the golden has no recording of the source in {shipped}; record it again"
            reason = self.golden.provenance.get("refused", {}).get(shipped, unrecorded)
            return [Stage("precision", "unverified", reason)]
        (stage,) = map(self.by_scales, self.measure("precision", runner, "stored", shipped))
        probes = [self.golden.probes[index] for index in self.probes]
        runners = runner, self.candidate.structure
        return [finite_stage(stage, runners, self.golden.signature, probes)]

    def measure_variants(self, name: str, runner: Runner, ran: Candidate) -> list[Stage]:
        """Measure RUNNER of RAN in float32, against another recording too where the first is not met.

        Where none is met, the one that is nearest to it says by how much.
        """
        found = [self.measure(name, runner, self.storage, "float32")]
        for storage, words in self.variants(ran) if found[0][-1].status == "fail" else ():
            again = self.measure(name, runner, storage, "float32")
            again[-1] = again[-1]._replace(detail=f"{again[-1].detail}; {words}")
            if again[-1].status != "fail" or storage.endswith(CONSTANTS):
                self.storage = storage
                return again
            found.append(again)
        return min(found, key=lambda stages: share(stages[-1]))

    def variants(self, ran: Candidate) -> Iterator[tuple[str, str]]:
        """Yield other recordings that RAN may be compared with, and what they are.

        They differ from the source in what the format or class rounds and the source, in the same 16
        bits, rounds too or cannot tell.
        """
        if self.candidate.exact:
            return
        if self.candidate.rounds_constants and self.recorded(f"{self.storage}{CONSTANTS}"):
            words = f"constants rounded to {ran.storage} on both sides"
            yield f"{self.storage}{CONSTANTS}", words
        source, rounded = self.golden.model, ran.storage
        if source is None or source.path is None or rounded == "float32":
            return
        if kept := self.kept(ran):
            words = f"against the source with the {rounded} digits that the candidate keeps of sums"
            yield self.record_again(kept, self.storage, "kept"), words
        from ..reference.reference import float32_module, scalars_of

        if not scalars_of(float32_module(source)):
            return  # one more recording would be the same again
        scalars = f"{self.storage}{SCALARS}{rounded}"
        words = f"scalars such as an embedding's scale rounded to {rounded} on both sides"
        yield self.record_again(kept or source, scalars, "scalars"), words

    def kept(self, ran: Candidate) -> Model | None:
        """Return the source with the digits of sums that RAN keeps, such as 1 + w; ``None`` where it keeps all."""
        source = self.golden.model
        at_hand = ran is self.candidate and source is not None and source.path is not None
        if not at_hand or source is None or ran.storage == "float32" or self.candidate.program:
            return None
        return as_kept(source, self.explanations, ran.weights)

    def recorded(self, storage: str) -> bool:
        """Say whether there is a recording with weights in STORAGE, for a package made now."""
        known, model = storage in self.golden.outputs, self.golden.model
        if model and self.candidate.rounds_constants and not known:
            self.record_again(model, storage, storage)
        return storage in self.golden.outputs

    def record_again(self, model: Model, storage: str, name: str) -> str:
        """Record MODEL's outputs with weights kept in STORAGE as NAME, and return that."""
        recorder = Recorder(model, self.golden.probes)
        rows = recorder.outputs(storage)
        errors = {f"{name}/float32": recorder.structure_errors(storage, rows)}
        known = self.golden.outputs, self.golden.errors
        outputs, errors = {**known[0], name: rows}, {**known[1], **errors}
        self.golden = replace(self.golden, outputs=outputs, errors=errors)
        return name

    def measure(self, name: str, runner: Runner, storage: str, compute: str) -> list[Stage]:
        """Run RUNNER on the probes and measure its errors, unless its outputs are wrong already."""
        probes = [self.golden.probes[index] for index in self.probes]
        wanted = [self.golden.outputs[storage][index] for index in self.probes]
        taken, signature = self.candidate.signature, self.golden.signature
        alone = alone_of(signature, taken, probes) if name == "structure" else None
        asked = [*probes, *([alone.probe] if alone else ())]
        try:
            ran = run_all(runner, "checking: probe", [probe.inputs for probe in asked])
            single = ran.pop() if alone else None
            found = [compared(signature, *it) for it in zip(probes, ran, strict=True)]
        except Exception as error:
            return [unrunnable(error)]
        outputs = outputs_stage(self.golden, probes, found, wanted)
        wrong = outputs.status == "fail"
        if wrong and not (name == "precision" and integers_alone(outputs)):
            return [outputs]
        key = f"{storage}/{compute}"

        def judged() -> list[Stage]:
            runs = found, wanted, self.own_errors(key)
            return [self.calibrated(name, runner, probes, runs, once=key in self.golden.more)]

        stages = self.with_more_runs(key, judged)
        if name != "structure":
            return [*stages[:-1], chosen_otherwise(stages[-1], outputs)] if wrong else stages
        self.ran = Ran(probes, found, wanted, self.own_errors(key), alone, single)
        return [outputs, *stages]

    def own_errors(self, key: str) -> list[dict[str, Distance]]:
        """Return how far the source itself errs on each probe, by KEY of the golden's errors."""
        return [self.golden.errors[key][index] for index in self.probes]

    def with_more_runs(self, key: str, ask: Callable[[], list[Stage]]) -> list[Stage]:
        """Return what ASK does; where that fails by errors called KEY of one run, by those of several."""
        stages = ask()
        if key in self.golden.more and any(it.status == "fail" for it in stages):
            self.golden = self.golden.in_several_runs(key)
            return ask()
        return stages

    def calibrated(
        self,
        name: str,
        runner: Runner,
        probes: Sequence[Probe],
        runs: tuple[Outputs, Outputs, list[dict[str, Distance]]],
        *,
        once: bool = False,
    ) -> Stage:
        """Judge errors by the floor of RUNNER's runtime, device, dtype and accumulation.

        The source's own are of one run if ONCE, and of several before anything differs.
        """
        about = runner.describe()
        key = (about["runtime"], about["device"], about["dtype"], about["accumulate"])
        study = floor(*key, blas=about.get("blas", ""))
        if study is None:
            return unstudied(name, about)
        self.unchecked += [it for it in studied_elsewhere(study) if it not in self.unchecked]
        stage = error_stage(name, self.golden, probes, runs[0], runs[1], (study, runs[2]))
        return with_smallest(stage, self.golden, probes, (study, runs[2]), once=once)
