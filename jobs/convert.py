"""Convert and merge: plan, stage, check, publish."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import __version__
from ..converters.adapters import Survival
from ..converters.adapters.merging.survival import refusal, worst_of
from ..converters.adapters.modules_to_save import ModulesToSave
from ..converters.checkpoints import Checkpoint, Staging, Writer
from ..converters.common.hints import command
from ..converters.maps import Execution, Plan, WeightMap, execute
from ..converters.models import Model
from ..converters.models import open as open_model
from ..converters.results.sources import stamps
from ..converters.sidefiles import SIDECAR, SideFiles, copy_side_files, is_weights
from ..errors import BadInputError, MismatchError, UnsupportedError
from .bases import Kin, with_kinship
from .configuring import rewrite_config, translated
from .dense import as_dense, fitting, said_of
from .directions import directed_map, map_of
from .fitting import blamed, reading, require_dense, require_loadable, require_possible
from .foresight import foresee
from .manifest import facts_of, manifest_of, write_manifest
from .needs import require_memory
from .options import UNCHECKED, Options, Outcome, begin, open_with
from .originals import (
    Restored,
    fingerprints,
    in_order,
    join,
    keepsakes,
    map_for,
    restore,
    source_headers,
    write_sidecar,
)
from .provenance.merged_before import adapters_recorded
from .provenance.placement import base_and_adapter, live_on
from .weighing import weigh

if TYPE_CHECKING:
    from ..parity.check.verdict import Verdict

NOTHING = Restored({}, ())
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
        f" {command('convert', f'{model.framework}-to-{expected}', model.spec, target)}?"
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
            one, other = (Path(os.path.realpath(it)) for it in (source, written))
            if one.is_relative_to(other) or other.is_relative_to(one):
                raise BadInputError(f"{written} and {source} overlap; choose another target")


class Job(NamedTuple):
    """A conversion, planned.

    Attributes:
        model: the source, its adapter live.
        to: framework of the target.
        table: the map between torch and MLX names; ``None`` where none is known and none is needed.
        directed: the map from the source's names to the target's.
        plan: what pass 2 does.
        checkpoint: what it reads.
        restored: what is taken as it was before the way to MLX.
        warning: why the class that the map was learned from will not load what it makes, or what
            goes home otherwise than it came.
    """

    model: Model
    to: str
    table: WeightMap | None
    directed: WeightMap
    plan: Plan
    checkpoint: Checkpoint
    restored: Restored
    warning: str | None = None

    @property
    def key(self) -> str:
        """A fingerprint of the job: an interrupted run resumes only if nothing of it changed."""
        adapter = self.model.adapter.path if self.model.adapter else None
        beside = sorted(adapter.iterdir()) if adapter and adapter.is_dir() else [adapter]
        origins = [file for source, _ in self.restored.taken.values() for file in source.files]
        files = (*self.checkpoint.files, *dict.fromkeys(origins), *filter(None, beside))
        bound = [
            (step.identity, sorted(step.sizes.items()), sorted(step.amounts.items()))
            for step in self.plan.steps
        ]
        text = json.dumps(
            [__version__, str(self.directed), stamps(files), bound, self.plan.merged], default=str
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def move_weights(self, folder: Path, options: Options) -> Execution:
        """Run pass 2 into FOLDER."""
        total = sum(header.nbytes for header in self.plan.layout.values())
        metadata = {"format": FORMATS[self.to]}
        writer = Writer(
            folder, self.plan.layout, metadata=metadata, max_shard_size=options.max_shard_size
        )
        return execute(
            self.plan, self.checkpoint, writer, options.report("writing the weights", total)
        )

    def lines(self) -> tuple[str, ...]:
        """Return the plan, a line each."""
        trained = f"{len(self.restored.trained)} tensors of the sidecar left aside: trained since"
        notes = [f"note: {note}" for note in self.notes]
        return (*self.plan.lines(), *([trained] if self.restored.trained else []), *notes)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the result."""
        return [*([self.warning] if self.warning else []), *self.restored.notes]


def convert(
    source: str, target: Path, to: str, *, adapter: Path | None = None, options: Options = Options()
) -> Outcome:
    """Convert SOURCE to the framework TO at TARGET, merging ADAPTER on the way.

    Returns:
        The outcome; a result that differs lies in ``TARGET.rejected`` and there is no TARGET.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    options = begin(target, "model", options, source, adapter)
    base, adapter = base_and_adapter(source, adapter)
    foresee(base, options.map, options.trust_code)
    model = open_with(base, options)
    require_dense(model)
    require_framework(model, "torch" if to == "mlx" else "mlx", target)
    live, kin = live_on(model, adapter) if adapter else (model, None)
    return move(live, target, to, options, kin)


def move(model: Model, target: Path, to: str, options: Options, kin: Kin | None = None) -> Outcome:
    """Carry MODEL to TARGET in the naming of the framework TO: plan, stage, check, publish.

    KIN is what MODEL is to the one that its adapter was trained on.

    Raises:
        WeighbridgeError: bad input, or an adapter that is live on MODEL would be rounded away;
            nothing is left behind.
    """
    cast, whole = written(model)
    job = plan_job(cast, to, options)
    if options.dry_run:
        return Outcome(None, job.lines())
    require_apart(job.model, target)
    if options.check != "none":
        require_memory("check", model)
    key = f"{job.key}-{options.max_shard_size}-{options.sidecar}"
    with Staging(target, force=options.force, key=key, sources=options.sources) as staging:
        forget_side_files(staging.folder)
        execution = with_whole(job.move_weights(staging.folder, options), whole)
        require_surviving(execution.survival, force=options.force)
        facts = facts_of(job.model, job.plan, execution, to, job.table)
        facts |= adapters_recorded(job.model) | beside_weights(job, staging.folder, options)
        facts |= inexact(job.plan, execution, facts) | ({"kinship": kin._asdict()} if kin else {})
        live = replace(job.model, tensors=model.tensors) if whole else job.model
        return conclude(live, staging, facts, job.lines(), options)


def written(model: Model) -> tuple[Model, dict[str, Survival]]:
    """Return MODEL with ``modules_to_save`` tensors of its adapter as they are written, and what is left of them.

    The check compares with MODEL itself: what was rounded already would be equal to itself.

    Raises:
        UnsupportedError: numbers of the adapter do not fit the dtype of the base.
    """
    if not isinstance(model.tensors, ModulesToSave):
        return model, {}
    cast = model.tensors.cast_to_base()
    return replace(model, tensors=cast.checkpoint), cast.survival


def with_whole(execution: Execution, whole: Mapping[str, Survival]) -> Execution:
    """Return EXECUTION with what is left of WHOLE tensors; of one with an update too, the worse."""
    survival = {**execution.survival}
    for name, it in whole.items():
        either = [it, *([survival[name]] if name in survival else [])]
        survival[name] = worst_of(either)
    return execution._replace(survival=dict(sorted(survival.items())))


def require_surviving(survival: Mapping[str, Survival], *, force: bool) -> None:
    """Refuse a merge that rounds an update away, unless FORCE.

    Raises:
        MismatchError: lists such weights, the worst first, and what to do instead.
    """
    lost = refusal(survival)
    if lost and not force:
        raise MismatchError(
            f"{len(lost)} of {len(survival)} updates would be rounded away; keep the adapter live, or"
            " merge into the same weights in float32 (--force merges all the same)",
            lost,
        )


def forget_side_files(folder: Path) -> None:
    """Remove what an interrupted run left beside the weights in FOLDER; the source may lack it now."""
    for path in folder.iterdir():
        ours = path.name.lstrip(".").startswith(SIDECAR) or path.suffix == ".journal"
        if path.is_dir():
            shutil.rmtree(path)
        elif not ours and not is_weights(path):
            path.unlink()


def plan_job(model: Model, to: str, options: Options) -> Job:
    """Bind the map of MODEL to its tensors, all or nothing; pass 1.

    Raises:
        MismatchError: anything does not fit, or is needed and nowhere.
    """
    stays = model.framework == to and not model.map_text  # then nobody needs to know the map
    table, directed = (None, directed_map(model, to)) if stays else maps(model, to)
    config = configuration(model, to)
    home = (model.framework, to) == ("mlx", "torch")
    there = source_headers(model, options.original) if home else None
    if table and there:
        table = map_for(model, table, there)
        directed = table.inverse()
    restored = restore(model, table, there, options.original) if table and there else NOTHING
    unpacked, note = restored.unpacked, None
    if unpacked:
        note = said_of(unpacked, model)
        model, there, table = as_dense(model)
        directed, restored = table.inverse(), restore(model, table, there, options.original)
        spare = tuple(name for name in unpacked.left_out if name not in there)
        restored = restored._replace(left_out=(*restored.left_out, *spare))
    plan = directed.bind(
        model.checkpoint.headers,
        config=config,
        sizes=model.sizes,
        updates=model.adapter.updates if model.adapter else {},
    )
    if table is None or there is None:
        leaves = (model.framework, to) == ("torch", "mlx")
        warning = require_loadable(model, config, plan.layout) if leaves else None
        return Job(model, to, table, directed, plan, model.checkpoint, restored, warning)
    plan, checkpoint = join(plan, model.checkpoint, restored)
    return Job(model, to, table, directed, in_order(plan, there), checkpoint, restored, note)


def maps(model: Model, to: str) -> tuple[WeightMap | None, WeightMap]:
    """Return MODEL's map between torch and MLX, and the one from its own names to those of TO.

    Raises:
        WeighbridgeError: there is no map, or MODEL cannot be what it says.
    """
    require_possible(model)
    try:
        return map_of(model), directed_map(model, to)
    except UnsupportedError as error:
        raise blamed(model, error) from error


def configuration(model: Model, to: str) -> Mapping[str, Any]:
    """Return the configuration that a map's sizes are taken from: MLX's, which has all of them."""
    made = translated(model, to) if to == "mlx" else None
    return made.config if made else model.config


def beside_weights(job: Job, folder: Path, options: Options) -> dict[str, Any]:
    """Write what lies beside the weights into FOLDER; return what the manifest says of it."""
    facts: dict[str, Any] = {"side_files": side_files(job.model, folder)._asdict()}
    made = translated(job.model, job.to, options.original)
    if job.to == "torch":
        made = fitting(made, job.model, job.plan.layout)
    facts["config"] = rewrite_config(folder, made)
    if (job.model.framework, job.to) == ("torch", "mlx"):
        kept = keepsakes(job.plan, options.sidecar)
        write_sidecar(kept, job.model.checkpoint, folder)
        facts["sidecar"] = kept
        facts["dropped_hashes"] = fingerprints(job.plan, job.model.checkpoint)
    if job.model.framework == job.to:
        facts |= carry_origin(job.model, folder)
    elif not (job.warning and job.to == "mlx"):
        facts["library"] = reading(job.model)
    facts["notes"] = job.notes
    facts["trained"], facts["restored"] = list(job.restored.trained), sorted(job.restored.taken)
    return {key: value for key, value in facts.items() if value}


def inexact(plan: Plan, execution: Execution, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of weights of which no checkpoint gives the very bits."""
    if not execution.missed:
        return {}
    count, all_of_them = sum(execution.missed.values()), 0
    for name in execution.missed:
        all_of_them += prod(plan.layout[name].shape)
    said = f"{count:,} of {all_of_them:,} numbers in {len(execution.missed)} weights have no exact"
    said += " preimage: the class computes with them, and no number found leads to their very bits"
    return {"missed": execution.missed, "notes": [*facts.get("notes", ()), said]}


def carry_origin(model: Model, folder: Path) -> dict[str, Any]:
    """Carry over what MODEL's directory knows of where it comes from, its sidecar included."""
    manifest = manifest_of(model)
    if model.path and (model.path / SIDECAR).is_file():
        shutil.copyfile(model.path / SIDECAR, folder / SIDECAR)
    kept = {key: manifest.get(key) for key in ("config", "dropped_hashes", "library", "sidecar")}
    return kept | {"witness": model.witness}


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
        verdict = as_forced(verdict, facts["merged"])
        verdict = with_kinship(verdict, Kin(**facts["kinship"])) if "kinship" in facts else verdict
        layout = verdict.stage("layout")
        seen = {"witness": layout.detail} if layout and layout.status == "pass" else {}
        write_manifest(staging.folder, facts | seen | {"verdict": verdict.to_json()})
    differs = verdict is not None and verdict.status == "DIFFERS"
    path = staging.reject() if differs else staging.publish()
    return Outcome(path, plan, facts, verdict, wanted=options.check != "none")


def as_forced(verdict: Verdict, merged: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Return VERDICT, which does not pass if an update is lost among those MERGED, as FORCE allowed.

    That the rounded sum is the one in the file is true then, and not what the adapter was for.
    """
    from ..parity.check.verdict import decide

    lost = refusal({name: Survival(**it) for name, it in merged.items()})
    if not lost:
        return verdict
    said = f"; {len(lost)} of {len(merged)} updates are rounded away, which --force allowed"
    stages = tuple(
        it._replace(status="unverified", detail=it.detail + said)
        if (it.name, it.status) == ("fingerprints", "pass")
        else it
        for it in verdict.stages
    )
    return replace(verdict, stages=stages, status=decide(stages, ""))


def checked(model: Model, folder: Path, target: Path, options: Options) -> Verdict | None:
    """Weigh FOLDER, to be published as TARGET, against MODEL, unless the user wants no check."""
    if options.check == "none":
        return None
    code = options.candidate_code or options.trust_code
    candidate = replace(open_model(folder, trust_code=code), spec=str(target))
    return weigh(model, candidate, quick=options.check == "quick")
