"""Check a candidate against a reference: one mechanism for every pair."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...converters.common.policy import Policy
from ...converters.common.steps import step
from ...converters.models import PROGRAMS, Model
from ...converters.runtimes import Runner, native_runtime
from ..blame.blame import Fault
from ..blame.locating import locate
from ..configuration.processors import processor_stages
from ..configuration.stage import (
    configuration_stage,
    shorter,
    upstream_of,
    with_lengths,
    with_reach,
)
from ..goldens.golden import Golden
from ..goldens.recorder import unused_of
from ..packages.ahead import weights_stage
from ..packages.encoded import without_encoder
from ..packages.judged import judge, refuse_untrue, with_numbers
from ..probes import coverage
from ..probes.probes import Probe
from ..text.compare import compare_sides
from ..text.side import read_text_side
from ..weights.expectations import Expected, disagreements, names_that, with_programs
from ..weights.fingerprints import Explanation, explain
from ..weights.reference_index import Permitted
from ..weights.weights import base_weights, model_hashes
from .batches import batch_stages
from .candidate import Candidate
from .decoding import decoding_stages
from .layout import layout_stage
from .modes import notes_on_modes
from .pictures import picture_stage
from .recording import as_given, left_out, record_for
from .runs import Runs
from .smallest import with_smallest_change
from .stages import auxiliary_stage, fingerprint_stage
from .towers import completed, takes_pictures, tower_stages
from .verdict import Stage, Verdict, decide

Expectations = Mapping[str, Expected]


def check(  # noqa: PLR0913  # the options of a verb, by keyword
    reference: Model | Golden,
    candidate: Model,
    *,
    runtime: str | None = None,
    policy: Policy = Policy(),
    quick: bool = False,
    expected: Expectations | None = None,
    layout: tuple[bool, str] | None = None,
    probes: Sequence[Probe] | None = None,
    cache: Path | None = None,
) -> Verdict:
    """Check CANDIDATE against REFERENCE; the first stage that fails explains the others.

    Args:
        reference: a model, recorded now, or a golden, recorded before.
        candidate: what is judged.
        runtime: where the candidate runs; by default its framework's own runtime.
        policy: device and precision of the candidate's run; a compute dtype of 16 bits asks for
            stage P in it. Weights kept in 16 bits ask for stage P by themselves.
        quick: text side, fingerprints and one small probe only.
        expected: what a map says: candidate's weight -> a ``Expectation``, or the reference's weight,
            or that and the permutation of its axes.
        layout: whether something besides the map confirms how the weights lie in MLX, and what;
            ``None`` where no map stands between the two sides.
        probes: a user's own inputs.
        cache: folder of recordings, see ``golden.record``.

    Raises:
        WeighbridgeError: one of the sides cannot be read or run.
    """
    notes = [*notes_on_modes(None if isinstance(reference, Golden) else reference, candidate)]
    judged = Candidate(candidate, runtime or native_runtime(candidate.framework), policy)
    with judged.computing(reference):
        reference, left, given = as_given(reference, judged := judged.called_as(reference))
        notes += [*left, *([] if quick or probes else left_out(reference, judged))]
        golden = record_for(reference, judged, quick=quick, probes=probes, cache=cache)
        golden, unseen = without_encoder(golden, judged.encoded)
        asked = (expected or {}, layout, given)
        return Check(golden, judged, *asked, quick=quick, unchecked=notes + unseen).verdict()


@dataclass
class Check(Runs):
    """One check on its way: stages are added in order.

    Attributes:
        expected: what a map says.
        layout: the independent layout check: whether there is one, and what it is.
        given: what is known of the outputs before anything runs.
        untrue: what a package says of itself and is not so.
    """

    expected: Expectations
    layout: tuple[bool, str] | None = None
    given: tuple[Stage, ...] = ()
    untrue: list[str] = field(default_factory=list)

    def verdict(self) -> Verdict:
        """Run the stages and decide."""
        stages = [self.text(), configuration_stage(self.golden, self.candidate)]
        stages += [self.fingerprints(), *self.layout_stages()]
        towers = tower_stages(self.golden, self.candidate, self.explanations)
        sees = bool(towers) and not takes_pictures(self.golden.signature)
        stages += processor_stages(self.golden.model, self.candidate.model, needed=sees)
        self.unchecked += [stage.detail for stage in towers]
        asked = self.golden.signature, self.candidate.signature, self.candidate.names
        auxiliary, before = auxiliary_stage(*asked), self.golden.more
        runs = auxiliary.status in ("pass", "skipped")
        stages += [*towers, auxiliary, *(self.runs() if runs else []), *self.given]
        if sees:
            stages = self.with_pictures(stages)
        if any((it.name, it.status) == ("fingerprints", "fail") for it in stages):
            stages = weights_stage(stages, self.ahead)
        if self.golden.more != before:  # bounds are wider than they were
            golden = self.golden.in_several_runs("stored/float32")
            stages[1] = configuration_stage(golden, self.candidate)
        status = decide(stages, self.candidate.runtime)
        refuse_untrue(self.candidate.model.spec, self.untrue if status != "DIFFERS" else ())
        faults = self.blame(stages) if status == "DIFFERS" else ()
        upstream = upstream_of(stages, self.explanations)
        return Verdict(status, tuple(stages), faults, self.provenance(stages), upstream)

    def with_pictures(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return STAGES, that of the towers with what a picture said, where the text alone is right."""
        ran = {"structure", "layout"} & {it.name for it in stages if it.status != "skipped"}
        if not ran or any(it.status == "fail" for it in stages):
            return [*stages]
        seen = picture_stage(self.golden, self.candidate, self.storage, quick=self.quick)
        found = [completed(it, seen) if it.name == seen.name else it for it in stages]
        renamed = {a.detail: b.detail for a, b in zip(stages, found, strict=True) if a is not b}
        left = f"{seen.name}: videos, other pictures than one of one size, sixteen bits"
        self.unchecked = [
            renamed[it]
            if it in renamed and seen.status == "unverified"
            else left
            if it in renamed
            else it
            for it in self.unchecked
        ]
        return found

    def text(self) -> Stage:
        """Compare the text sides."""
        model = self.candidate.model
        if kind := PROGRAMS.get(model.framework):
            return Stage("text", "skipped", f"{kind} takes ids; it has no text side")
        return compare_sides(self.golden.text, read_text_side(model.folder, self.golden.text))

    def fingerprints(self) -> Stage:
        """Explain every weight of the candidate by the reference's values."""
        step("checking: weights by their values")
        source = self.golden.model
        readable = base_weights(source).read if source else None
        self.candidate.weights = with_numbers(self.golden, self.candidate)
        found = explain(
            self.golden.sketches,
            self.candidate.weights,
            reference_arrays=readable,
            updates=source.adapter.updates if source and source.adapter else {},
            unused=partial(unused_of, self.golden),
            permitted=Permitted(
                names_that(self.expected, "changed"), names_that(self.expected, "reordered")
            ),
        )
        found, self.untrue = judge(self.golden, self.candidate, found)
        self.explanations = self.without_needless(with_programs(found, self.expected))
        wrong = disagreements(self.explanations, self.expected)
        stage = fingerprint_stage(self.explanations, wrong)
        return with_smallest_change(stage, self.golden, self.candidate, self.explanations)

    def without_needless(self, explanations: Sequence[Explanation]) -> Sequence[Explanation]:
        """Return EXPLANATIONS, those excused that a torch candidate has and no output of it needs.

        A vision tower that comes from the original checkpoint is nowhere in an MLX language model.
        """
        model = self.candidate.model
        unknown = {it.name for it in explanations if it.kind == "unexplained"}
        source = self.golden.framework
        if not unknown or (model.framework, source) != ("torch", "mlx") or not self.golden.probes:
            return explanations
        from ..reference.unused import unneeded

        needless = unneeded(model, self.golden.probes[0])
        words = "no output needs it, and the reference has nothing like it"
        return [
            it._replace(source=None, kind="unused", detail=words, ok=True)
            if it.name in unknown & needless and it.kind == "unexplained"
            else it
            for it in explanations
        ]

    def layout_stages(self) -> list[Stage]:
        """Say what confirms the layout: the map that did the job cannot confirm itself."""
        if self.layout is None:
            return []
        confirmed, by = self.layout
        if not confirmed or not self.probes:
            return [Stage("layout", "pass" if confirmed else "unverified", by)]
        source = self.golden.model
        in_mlx = source if source is not None and source.framework == "mlx" else None
        ran = Candidate(in_mlx, "mlx", self.candidate.policy) if in_mlx else self.candidate
        return [layout_stage(by, ran, self.measure_layout, is_source=in_mlx is not None)]

    def measure_layout(self, runner: Runner, ran: Candidate) -> Stage:
        """Run the class that reads the files of RAN, the reference's as they are, on short texts."""
        before = self.storage, self.probes  # which recording the class meets says nothing of ours
        self.storage = self.storage if ran is self.candidate else "stored"
        self.probes = shorter(self.golden, self.probes)  # what it does with windows is no layout
        recorded = self.storage in self.golden.outputs
        stages = self.measure_variants("layout", runner, ran) if recorded else []
        self.storage, self.probes = before
        return stages[-1] if stages else Stage("layout", "unverified", "was not run: no recording")

    def runs(self) -> list[Stage]:
        """Run the candidate: outputs and structure in float32, precision in the dtype that ships."""
        if not self.probes:
            return [Stage("structure", "unverified", "no probe fits the candidate's input sizes")]
        optional = self.golden.model is None or self.candidate.model.framework == "gguf"
        if optional and (reason := self.candidate.missing):
            return [Stage("structure", "unverified", reason)]
        stages = self.structure()
        if stages[-1].name == "outputs":
            return stages
        probes = [self.golden.probes[index] for index in self.probes]
        found = with_lengths(self.golden, self.candidate, probes, stages, self.storage)
        found, notes = with_reach(
            self.golden, self.candidate, found, self.storage, quick=self.quick
        )
        self.unchecked += notes
        asked = (*self.batches(stages[-1]), *self.pieces(stages[-1]))
        return [*found, *asked, *self.precision(), *self.activations()]

    def batches(self, structure: Stage) -> list[Stage]:
        """Say whether rows padded, among others and alone are what STRUCTURE says of all together."""
        runner = self.candidate.structure
        if runner is None or self.ran is None:
            return []
        judge, ran = partial(self.calibrated, "batch", runner), self.ran
        self.ran, key = None, f"{self.storage}/float32"  # outputs take memory

        def ask() -> list[Stage]:
            about = ran._replace(own=self.own_errors(key))
            return batch_stages(self.golden, self.candidate, self.storage, about, judge, structure)

        return self.with_more_runs(key, ask)

    def pieces(self, structure: Stage) -> list[Stage]:
        """Read texts piece by piece, where STRUCTURE says that they are right read at once."""
        runner = self.candidate.structure
        if structure.status != "pass" or runner is None:
            return []
        judge = partial(self.calibrated, "decoding", runner)

        def ask() -> list[Stage]:
            return decoding_stages(self.golden, self.candidate, self.storage, self.probes, judge)

        return self.with_more_runs(f"{self.storage}/float32", ask)

    def blame(self, stages: Sequence[Stage]) -> tuple[Fault, ...]:
        """Name the sites at which the two sides part, where both expose theirs."""
        failed = {stage.name for stage in stages if stage.status == "fail"}
        ran = failed & {"outputs", "structure"}
        if not ran or (runner := self.candidate.structure) is None:
            return ()
        whole = [index for index in self.probes if not self.golden.probes[index].rows]
        chosen = [self.golden.probes[index] for index in whole[-2:]]
        golden = replace(self.golden, model=self.kept(self.candidate) or self.golden.model)
        found = locate(golden, runner, self.storage, chosen, self.explanations)
        self.unchecked += found.notes
        return found.faults

    def provenance(self, stages: Sequence[Stage]) -> dict[str, Any]:
        """Return what ran where, hashes of both sides, and what nobody looked at."""
        model = self.candidate.model
        ran = any(stage.name in ("outputs", "precision") for stage in stages)
        runner = (self.candidate.structure or self.candidate.precision) if ran else None
        probes = [self.golden.probes[index] for index in self.probes if ran]
        return {
            "level": "quick" if self.quick else "full",
            "reference": {"spec": self.golden.spec, **self.golden.provenance},
            "candidate": {
                "spec": model.spec,
                "storage": self.candidate.storage,
                "shipped": self.candidate.shipped,
                "compared_with_weights": self.storage,
                "hashes": model_hashes(model),
                "runner": runner.describe() if runner else {},
            },
            "platform": f"{platform.system()} {platform.machine()}",
            "probes": [probe.name for probe in probes],
            "not_checked": [
                *self.golden.notes,
                *self.golden.provenance.get("unreached", ()),
                *self.unchecked,
                *coverage.gaps(self.golden.signature, probes),
                *(["everything but one small probe (quick)"] if self.quick else []),
            ],
        }
