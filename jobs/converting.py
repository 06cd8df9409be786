"""Convert and merge: plan, stage, check, publish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ..converters.adapters import Survival
from ..converters.adapters.merging.modules_to_save import ModulesToSave
from ..converters.adapters.merging.survival import refusal, worst_of
from ..converters.checkpoints import Writer
from ..converters.common.hints import command, unused
from ..converters.maps import Execution, Plan, execute
from ..converters.models import PROGRAMS, Model, brought_back
from ..converters.models import open as open_model
from ..converters.models.model_files import KEY
from ..converters.models.towers import absent
from ..converters.planning.config import rewrite_config
from ..converters.planning.conversion import conversion_of
from ..converters.planning.dense import fitting
from ..converters.planning.fitting import (
    reading,
    require_dense,
    require_described,
)
from ..converters.planning.instead import require_taken
from ..converters.planning.job import Job, plan_job
from ..converters.planning.joined import with_restored
from ..converters.planning.manifest import facts_of, manifest_of
from ..converters.planning.memory import require_memory
from ..converters.planning.opening import overlaid
from ..converters.planning.prefetch import prefetch
from ..converters.planning.sidecar import (
    fingerprints,
    sidecar_tensors,
    write_sidecar,
)
from ..converters.planning.transcoding import (
    RECORDED,
    Transcoded,
    dequantized,
    is_quantized,
    movable,
    own_dtype,
    quantized_view,
    rewrite_sections,
    transcoded,
)
from ..converters.quantization import Dequantized
from ..converters.results.records import rejected_of
from ..converters.results.targets import absolute
from ..converters.sidefiles import SIDECAR, SideFiles, copy_side_files, is_weights
from ..errors import BadInputError, MismatchError, UnsupportedError
from ..parity.check.verdict import Verdict, decide
from ..parity.quantized.dequantized import dequantized_stage
from .checking import compare
from .options import CheckOptions, Options
from .pipeline import Checked, Facts, Outcome, Target, Written, publish
from .provenance.base import Provenance, with_provenance
from .provenance.merged_before import adapters_recorded
from .provenance.placement import base_and_adapter, live_on
from .quantizing.transcoded import compare_quantized
from .repairing import mended, naming_repairs, offering, unread

FORMATS = {"torch": "pt", "mlx": "mlx"}  # what safetensors files say of themselves


def require_framework(model: Model, expected: str, target: Path) -> None:
    """Answer a wrong direction with the right command.

    Raises:
        BadInputError: the weights have another framework's naming.
    """
    if model.framework == expected:
        return
    if model.framework in PROGRAMS:
        other = "torch" if expected == "mlx" else "mlx"
        verb = brought_back(model.framework, model.spec, other, target)
        raise BadInputError(f"{model.spec} is {PROGRAMS[model.framework]}; did you mean {verb}?")
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
        for written in (target, *(rejected_of(target, kind) for kind in ("model", "package"))):
            one, other = (Path(os.path.realpath(it)) for it in (source, written))
            if one.is_relative_to(other) or other.is_relative_to(one):
                raise BadInputError(f"{written} and {source} overlap; choose another target")


def convert(
    source: str, target: Path, to: str, *, adapter: Path | None = None, options: Options = Options()
) -> Outcome:
    """Convert SOURCE to the framework TO at TARGET, merging ADAPTER on the way.

    Returns:
        The outcome; a result that differs lies in ``TARGET.rejected`` and there is no TARGET.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    place = options.begin(target, "model", source, adapter)
    base, adapter = base_and_adapter(source, adapter)
    require_taken(Path(base), "torch-to", "mlx-to", "peft-to")
    prefetch(base, options.map, options.trust_code)
    model = options.open(base)
    model = dequantized(model, options.dequantize) if options.dequantize else quantized_view(model)
    require_dense(model)
    require_described(model)
    require_framework(model, "torch" if to == "mlx" else "mlx", target)
    model = mended(model, options)
    keeps_codes = is_quantized(model) and not options.dequantize
    if keeps_codes and adapter:
        raise merge_first(model, adapter)
    live, provenance = live_on(model, adapter) if adapter else (model, None)
    with naming_repairs(model, place.path):
        return move(live, place, to, options, provenance, keeps_codes=keeps_codes)


def move(  # noqa: PLR0913  # of two verbs, by keyword
    model: Model,
    target: Target,
    to: str,
    options: Options,
    provenance: Provenance | None = None,
    *,
    keeps_codes: bool = False,
    limited: Callable[[Verdict], Verdict] | None = None,
) -> Outcome:
    """Carry MODEL to TARGET in the naming of the framework TO: plan, stage, check, publish.

    PROVENANCE is what MODEL is to its adapter's base; LIMITED lowers the verdict.

    Raises:
        WeighbridgeError: bad input, or an adapter would be rounded away; nothing is left behind.
    """
    cast, whole = written(model := overlaid(model))
    job = plan_job(conversion_of(cast, to, options.original))
    job, coded = coded_as(job, options) if keeps_codes else (job, None)
    lines = (*job.lines(), *(coded.lines() if coded else ()))
    if options.dry_run:
        return target.planned(lines)
    require_room(job.model, target, options)

    def write(folder: Path) -> Written:
        forget_side_files(folder)
        execution = with_whole(move_weights(coded or job, job.to, folder, options), whole)
        require_surviving(execution.survival, force=options.force)
        facts = facts_of(job.model, job.plan, execution, to, job.table)
        facts |= adapters_recorded(job.model) | beside_weights(job, folder, options)
        facts |= inexact(job.plan, execution, facts) | transcoded_facts(coded, folder)
        facts |= {"base_provenance": provenance._asdict()} if provenance else {}
        return Written(facts, lines)

    live = replace(job.model, tensors=model.tensors) if whole else job.model
    live = with_restored(live, job.restored)
    check = judged(live, absolute(target.path), provenance, options, limited)
    check = offering(check, model, target.path) if to == "mlx" else check
    return publish(target, key_of(job, coded, options), write, check if options.checks else None)


def require_room(model: Model, target: Target, options: Options) -> None:
    """Refuse a TARGET that overlaps MODEL, and a check for which there is not memory enough."""
    require_apart(model, target.path)
    if options.checks:
        require_memory("check", model, quick=options.quick)


def key_of(job: Job, coded: Transcoded | None, options: Options) -> str:
    """Return what a run that was killed must have in common with this one to be resumed."""
    how = (options.max_shard_size, options.sidecar, options.dequantize, options.repair)
    return "-".join(map(str, (job.key, *how, coded and coded.facts)))


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
    """Return EXECUTION with the survival of WHOLE, tensors of ``modules_to_save``.

    Of one that has an update too, the worse counts.
    """
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


def move_weights(moved: Job | Transcoded, to: str, folder: Path, options: Options) -> Execution:
    """Run pass 2 of what is MOVED, into FOLDER."""
    layout, size = moved.plan.layout, options.max_shard_size
    writer = Writer(folder, layout, metadata={"format": FORMATS[to]}, max_shard_size=size)
    total = sum(header.nbytes for header in layout.values())
    report = options.report("writing the weights", total)
    return execute(moved.plan, moved.checkpoint, writer, report)


def coded_as(job: Job, options: Options) -> tuple[Job, Transcoded]:
    """Return JOB, of a quantized model, and how it is written with the codes that it has."""
    job = movable(job)
    return job, transcoded(job, options.quant_method, allow_lossy=options.allow_lossy)


def transcoded_facts(coded: Transcoded | None, folder: Path) -> dict[str, Any]:
    """Let the configuration in FOLDER say how it is CODED; return what the manifest says of it."""
    if coded is None:
        return {}
    rewrite_sections(folder, coded.config)
    return {RECORDED: coded.facts}


def merge_first(model: Model, adapter: Path) -> UnsupportedError:
    """Return what is raised where an ADAPTER is to be merged into the codes of MODEL on the way."""
    merged = unused(model.spec, "-merged")
    return UnsupportedError(
        f"{model.spec} is quantized; merge the adapter first:"
        f" {command('merge', model.spec, str(adapter), merged)}, or into dense weights:"
        f" --dequantize {own_dtype(model)}"
    )


def beside_weights(job: Job, folder: Path, options: Options) -> dict[str, Any]:
    """Write what lies beside the weights into FOLDER; return what the manifest says of it."""
    facts: dict[str, Any] = {"side_files": side_files(job.model, folder, job.to)._asdict()}
    made = job.conversion.translation
    if job.to == "torch":
        made = fitting(made, job.model, job.plan.layout)
    facts["config"] = rewrite_config(folder, made)
    if (job.model.framework, job.to) == ("torch", "mlx"):
        kept = sidecar_tensors(job.plan, options.sidecar)
        write_sidecar(kept, job.model.checkpoint, folder)
        facts["sidecar"] = kept
        facts["dropped_hashes"] = fingerprints(job.plan, job.model.checkpoint)
    if job.model.framework == job.to:
        facts |= carry_origin(job.model, folder)
    elif not (job.warning and job.to == "mlx"):
        facts["library"] = reading(job.model)
    mended = unread(job.model) if job.to == "mlx" else ()
    facts["notes"] = [*job.notes, *absent(job.model), *mended]
    facts["trained"], facts["restored"] = list(job.restored.trained), sorted(job.restored.taken)
    return {key: value for key, value in facts.items() if value}


def inexact(plan: Plan, execution: Execution, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest says of weights of which no checkpoint gives the very bits."""
    if not execution.missed:
        return {}
    count, all_of_them = sum(execution.missed.values()), 0
    for name in execution.missed:
        all_of_them += prod(plan.layout[name].shape)
    note = f"{count:,} of {all_of_them:,} numbers in {len(execution.missed)} weights have no exact"
    note += " preimage: the class computes with them, and no number found leads to their very bits"
    return {"missed": execution.missed, "notes": [*facts.get("notes", ()), note]}


def carry_origin(model: Model, folder: Path) -> dict[str, Any]:
    """Carry over what MODEL's directory knows of where it comes from, its sidecar included."""
    manifest = manifest_of(model)
    if model.path and (model.path / SIDECAR).is_file():
        shutil.copyfile(model.path / SIDECAR, folder / SIDECAR)
    kept = {key: manifest.get(key) for key in ("config", "dropped_hashes", "library", "sidecar")}
    return kept | {"layout_check": model.layout_check}


def side_files(model: Model, folder: Path, to: str) -> SideFiles:
    """Copy what lies beside MODEL's weights; a ``model.py`` that mends a class of MLX stays in MLX."""
    if model.folder is None:
        return SideFiles((), ())
    ours = str(model.config.get(KEY)) if to == "torch" and model.config.get(KEY) else ""
    return copy_side_files(model.folder, folder, {ours})


def judged(
    model: Model,
    target: Path,
    provenance: Provenance | None,
    options: Options,
    limited: Callable[[Verdict], Verdict] | None,
) -> Callable[[Path, Facts], Checked]:
    """Return the check of a conversion of MODEL to TARGET; PROVENANCE is its adapter's base's.

    LIMITED lowers the verdict by what else is known.
    """

    def check(folder: Path, facts: Facts) -> Checked:
        verdict = as_forced(compared(model, folder, target, options), facts["merged"])
        verdict = with_provenance(verdict, provenance) if provenance else verdict
        verdict = with_dequantized(verdict, model) if options.dequantize else verdict
        verdict = limited(verdict) if limited else verdict
        layout = verdict.stage("layout")
        passed = layout is not None and layout.status == "pass"
        return Checked(verdict, {"layout_check": layout.detail} if layout and passed else {})

    return check


def with_dequantized(verdict: Verdict, model: Model) -> Verdict:
    """Return VERDICT and what MLX itself makes of the codes of MODEL, which is seen dense."""
    tensors = model.tensors.base if isinstance(model.tensors, ModulesToSave) else model.tensors
    return (
        verdict.preceded_by(dequantized_stage(tensors))
        if isinstance(tensors, Dequantized)
        else verdict
    )


def as_forced(verdict: Verdict, merged: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Return VERDICT, which does not pass if an update is lost among those MERGED, as FORCE allowed.

    That the rounded sum is the one in the file is true then, and not what the adapter was for.
    """
    lost = refusal({name: Survival(**it) for name, it in merged.items()})
    if not lost:
        return verdict
    lost_note = f"; {len(lost)} of {len(merged)} updates are rounded away, which --force allowed"
    stages = tuple(
        it._replace(status="unverified", detail=it.detail + lost_note)
        if (it.name, it.status) == ("fingerprints", "pass")
        else it
        for it in verdict.stages
    )
    return replace(verdict, stages=stages, status=decide(stages, ""))


def compared(model: Model, folder: Path, target: Path, options: CheckOptions) -> Verdict:
    """Compare FOLDER, to be published as TARGET, with MODEL."""
    code = options.for_candidate.trust_code
    found = open_model(folder, trust_code=code)
    is_file = found.framework not in ("torch", "mlx")  # which says itself what it takes
    ports = found.declared if is_file else found.declared or model.declared
    named = replace(found, spec=str(target), reader=model.reader, declared=ports)
    candidate = quantized_view(named)
    against = compare_quantized if is_quantized(candidate) else compare
    return against(model, candidate, quick=options.quick, inputs=options.inputs)
