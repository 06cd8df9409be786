"""Record a golden; weigh one model against another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..converters.checkpoints import Staging
from ..converters.common.policy import Policy
from ..converters.models import Model
from .convert import require_apart
from .needs import require_memory
from .options import Options, Outcome, begin, open_with
from .weighing import weigh

if TYPE_CHECKING:
    from ..parity.check.verdict import Verdict
    from ..parity.goldens.golden import Golden


def record(
    source: str, target: Path, *, level: str = "verdict", options: Options = Options()
) -> Outcome:
    """Record a golden of SOURCE at TARGET."""
    from ..parity.goldens.recorder import record as record_golden
    from ..parity.probes.probes import probes_from_file

    options = begin(target, "golden", options, source)
    model = open_with(source, options)
    require_apart(model, target)
    require_memory("record", model)
    with Staging(target, kind="golden", force=options.force, sources=options.sources) as staging:
        probes = probes_from_file(options.inputs, model.signature) if options.inputs else None
        golden = record_golden(model, level=level, probes=probes)
        golden.save(staging.folder)
        return Outcome(staging.publish(), facts={"level": level})


def golden_at(spec: str) -> Golden | None:
    """Return the golden at SPEC; ``None`` where SPEC is a model."""
    from ..parity.goldens.golden import Golden, is_golden

    return Golden.load(Path(spec)) if is_golden(Path(spec)) else None


def check(
    reference: str,
    candidate: str,
    *,
    runtime: str | None = None,
    policy: Policy = Policy(),
    options: Options = Options(check="full"),
) -> Verdict:
    """Weigh CANDIDATE against REFERENCE, a model or a golden; see ``parity.check.check``.

    Args:
        reference: spec of a model, or the directory of a golden.
        candidate: spec of a model.
        runtime: where the candidate runs; its framework's own if not given.
        policy: device and precision of the candidate's run.
        options: how to read both sides; with ``check="quick"`` one small probe is run.
    """
    theirs = replace(options, trust_code=options.candidate_code or options.trust_code)
    known = golden_at(reference) or open_with(reference, options)
    judged, quick = open_with(candidate, theirs), options.check == "quick"
    require_memory("check", judged, *([known] if isinstance(known, Model) else []))
    chosen: dict[str, Any] = {"runtime": runtime, "policy": policy, "quick": quick}
    return weigh(known, judged, inputs=options.inputs, **chosen)
