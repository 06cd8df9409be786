"""Convert and merge: plan, stage, check, publish."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..converters.checkpoints import Staging, Writer
from ..converters.maps import Execution, Plan, WeightMap, execute
from ..converters.models import MANIFEST, Model
from ..converters.models import open as open_model
from ..converters.sidefiles import SideFiles, copy_side_files
from ..errors import BadInputError
from .opening import add_adapter, directed_map
from .options import UNCHECKED, Options, Outcome, open_with
from .weighing import weigh

if TYPE_CHECKING:
    from ..parity.verdict import Verdict

FORMATS = {"torch": "pt", "mlx": "mlx"}  # what safetensors files say of themselves


def require_framework(model: Model, expected: str, target: Path) -> None:
    """Answer a wrong direction with the right command.

    Raises:
        BadInputError: the weights have another framework's naming.
    """
    if model.framework == expected:
        return
    if model.framework == "mlprogram":
        raise BadInputError(
            f"{model.spec} is a Core ML package; packages are checked, not converted"
        )
    other = "torch" if expected == "mlx" else "mlx"
    raise BadInputError(
        f"{model.spec} is already {model.framework}; did you mean"
        f" weighbridge convert {model.framework}-to-{expected} {model.spec} {target}?"
        if model.framework == other
        else f"{model.spec} has unknown layout {model.framework}"
    )


def require_apart(model: Model, target: Path) -> None:
    """Refuse a TARGET that is the source, lies in it, or holds it: ``--force`` would destroy it.

    Raises:
        BadInputError: source and target overlap.
    """
    sources = [path for path in (model.path, model.adapter and model.adapter.path) if path]
    for source in sources:
        for written in (target, target.with_name(f"{target.name}.rejected")):
            one, other = source.resolve(), written.resolve()
            if one.is_relative_to(other) or other.is_relative_to(one):
                raise BadInputError(f"{written} and {source} overlap; choose another target")


def job_key(plan: Plan, table: WeightMap, model: Model) -> str:
    """Return a fingerprint of a job: an interrupted run resumes only if nothing of it changed."""
    adapter = model.adapter.path if model.adapter else None
    beside = sorted(adapter.iterdir()) if adapter and adapter.is_dir() else [adapter]
    stamps = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns)
        for file in (*model.checkpoint.files, *filter(None, beside))
    ]
    bound = [
        (step.identity, sorted(step.sizes.items()), sorted(step.amounts.items()))
        for step in plan.steps
    ]
    text = json.dumps([__version__, str(table), stamps, bound, plan.merged], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def move_weights(model: Model, plan: Plan, folder: Path, to: str, options: Options) -> Execution:
    """Run pass 2 into FOLDER."""
    total = sum(header.nbytes for header in plan.layout.values())
    writer = Writer(
        folder, plan.layout, metadata={"format": FORMATS[to]}, max_shard_size=options.max_shard_size
    )
    return execute(plan, model.checkpoint, writer, options.report("Weights", total))


def facts_of(
    model: Model, plan: Plan, execution: Execution, to: str, table: WeightMap
) -> dict[str, Any]:
    """Return what ``weighbridge.json`` says of a conversion."""
    return {
        "weighbridge": __version__,
        "framework": to,
        "source": {"spec": model.spec, "framework": model.framework},
        "map": str(table),
        "sizes": plan.sizes,
        "tensors": execution.hashes,
        "dropped": [item._asdict() for item in plan.dropped],
        "merged": {name: survival._asdict() for name, survival in execution.survival.items()},
    }


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write ``weighbridge.json``."""
    (folder / MANIFEST).write_text(
        json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8"
    )


def convert(
    source: str, target: Path, to: str, *, adapter: Path | None = None, options: Options = Options()
) -> Outcome:
    """Convert SOURCE to the framework TO at TARGET, merging ADAPTER on the way.

    Returns:
        The outcome; a result that differs lies in ``TARGET.rejected`` and there is no TARGET.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    model = open_with(source, options)
    require_framework(model, "torch" if to == "mlx" else "mlx", target)
    return move(model, target, to, adapter, options)


def merge(base: str, adapter: Path, target: Path, *, options: Options = Options()) -> Outcome:
    """Merge ADAPTER into BASE, names and layouts as they are."""
    model = open_with(base, options)
    return move(model, target, model.framework, adapter, options)


def move(model: Model, target: Path, to: str, adapter: Path | None, options: Options) -> Outcome:
    """Carry MODEL to TARGET in the naming of the framework TO: plan, stage, check, publish."""
    if adapter:
        model = add_adapter(model, adapter)
    updates = model.adapter.updates if model.adapter else {}
    table = directed_map(model, to)
    plan = table.bind(
        model.checkpoint.headers, config=model.config, sizes=model.sizes, updates=updates
    )
    if options.dry_run:
        return Outcome(None, tuple(plan.lines()))
    require_apart(model, target)
    with Staging(target, force=options.force, key=job_key(plan, table, model)) as staging:
        execution = move_weights(model, plan, staging.folder, to, options)
        side = side_files(model, staging.folder)
        forward = table if to in ("mlx", model.framework) else table.inverse()
        facts = facts_of(model, plan, execution, to, forward) | {"side_files": side._asdict()}
        return conclude(model, staging, facts, tuple(plan.lines()), options)


def side_files(model: Model, folder: Path) -> SideFiles:
    """Copy what lies beside MODEL's weights."""
    if model.path is None or not model.path.is_dir():
        return SideFiles((), ())
    return copy_side_files(model.path, folder)


def conclude(
    model: Model, staging: Staging, facts: dict[str, Any], plan: tuple[str, ...], options: Options
) -> Outcome:
    """Check the staged result, then publish or reject it."""
    write_manifest(staging.folder, facts | {"verdict": UNCHECKED})
    verdict = checked(model, staging.folder, staging.target, options)
    if verdict:
        layout = verdict.stage("layout")
        seen = {"witness": layout.detail} if layout and layout.status == "pass" else {}
        write_manifest(staging.folder, facts | seen | {"verdict": verdict.to_json()})
    differs = verdict is not None and verdict.status == "DIFFERS"
    path = staging.reject() if differs else staging.publish()
    return Outcome(path, plan, facts, verdict, wanted=options.check != "none")


def checked(model: Model, folder: Path, target: Path, options: Options) -> Verdict | None:
    """Weigh FOLDER, to be published as TARGET, against MODEL, unless the user wants no check."""
    if options.check == "none":
        return None
    code = options.candidate_code or options.trust_code
    candidate = replace(open_model(folder, trust_code=code), spec=str(target))
    return weigh(model, candidate, quick=options.check == "quick")
