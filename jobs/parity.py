"""Record a golden; compare one model with another."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..converters.common.policy import Policy
from ..converters.models import Model
from ..converters.planning.memory import require_memory
from ..converters.planning.transcoding import is_quantized, quantized_view
from ..errors import BadInputError, UnsupportedError
from ..parity.check.verdict import Verdict
from .checking import compare
from .converting import require_apart
from .importing.compared_gguf import GGUF, compare_gguf
from .options import CheckOptions, PublishOptions
from .pipeline import Outcome, Written, publish
from .quantizing.transcoded import compare_quantized

if TYPE_CHECKING:
    from ..parity.goldens.golden import Golden


def record(
    source: str, target: Path, *, level: str = "verdict", options: PublishOptions = PublishOptions()
) -> Outcome:
    """Record a golden of SOURCE at TARGET."""
    from ..parity.goldens.recorder import record as record_golden
    from ..parity.probes.given import probes_from_file

    place = options.begin(target, "golden", source)
    model = options.open(source)
    require_apart(model, target)
    require_memory("record", model)

    def write(folder: Path) -> Written:
        probes = probes_from_file(options.inputs, model.signature) if options.inputs else None
        record_golden(model, level=level, probes=probes).save(folder)
        return Written({"level": level})

    outcome = publish(place, "", write)
    return replace(outcome, facts={**outcome.facts, "done": "recorded"})


def golden_at(spec: str) -> Golden | None:
    """Return the golden at SPEC; ``None`` where SPEC is a model.

    Raises:
        BadInputError: one of a golden's two files is missing.
    """
    from ..parity.goldens.golden import Golden, missing_in

    lost = missing_in(Path(spec))
    if len(lost) == 1:
        raise BadInputError(f"{spec}: {lost[0]} of this golden is missing; record the golden again")
    return None if lost else Golden.load(Path(spec))


def check(
    reference: str,
    candidate: str,
    *,
    runtime: str | None = None,
    policy: Policy = Policy(),
    options: CheckOptions = CheckOptions(check="full"),
) -> Verdict:
    """Compare CANDIDATE with REFERENCE, a model or a golden; see ``parity.check.check``.

    Args:
        reference: spec of a model, or the directory of a golden.
        candidate: spec of a model.
        runtime: where the candidate runs; its framework's own if not given.
        policy: device and precision of the candidate's run.
        options: how to read both sides; with ``check="quick"`` one small probe is run.

    Raises:
        UnsupportedError: the candidate cannot run on the device.
    """
    chosen: dict[str, Any]
    known = golden_at(reference) or quantized_view(options.open(reference))
    quick = options.quick
    if candidate.endswith(GGUF) and Path(candidate).is_file():
        source = source_of(known, candidate)
        require_memory("check", source, quick=quick)
        chosen = {"runtime": runtime, "policy": policy, "quick": quick, "inputs": options.inputs}
        return compare_gguf(source, Path(candidate), **chosen)
    judged = quantized_view(options.for_candidate.open(candidate))
    require_device(judged, runtime, policy)
    sides = [judged, *([known] if isinstance(known, Model) else [])]
    require_memory("check", *sides, quick=quick)
    chosen = {"runtime": runtime, "policy": policy, "quick": quick}
    if isinstance(known, Model) and is_quantized(judged):
        return compare_quantized(known, judged, inputs=options.inputs, **chosen)
    return compare(known, judged, inputs=options.inputs, **chosen)


def source_of(known: Model | Golden, candidate: str) -> Model:
    """Return the model that KNOWN is: the tensors of the GGUF file CANDIDATE are named and laid out by it.

    Raises:
        BadInputError: it is a golden without its model.
    """
    found = known if isinstance(known, Model) else known.model
    if found is None:
        raise BadInputError(
            f"{candidate}: a GGUF file is held against the model itself, whose names and layouts a"
            " golden does not keep; name the model"
        )
    return found


def require_device(candidate: Model, runtime: str | None, policy: Policy) -> None:
    """Refuse a CANDIDATE that is to run on another device than a CPU, and is no package in Core ML on a Mac.

    Raises:
        UnsupportedError: it is.
    """
    packaged = candidate.framework == "mlprogram" and runtime in (None, "coreml")
    if policy.device == "cpu" or (packaged and platform.system() == "Darwin"):
        return
    raise UnsupportedError(
        f"{candidate.spec}: --device {policy.device} is for Core ML packages on a Mac; leave it out,"
        " and the CPU computes"
    )
