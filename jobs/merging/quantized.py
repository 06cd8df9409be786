"""Merge an adapter into a quantized base: planned, written, checked; refused where it would be lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...converters.checkpoints import Staging
from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models import Model
from ...converters.models import open as open_model
from ...errors import BadInputError
from ..bases import Kin, dense_view, with_kinship
from ..convert import forget_side_files, require_apart
from ..manifest import write_manifest
from ..needs import require_memory
from ..options import UNCHECKED, Options, Outcome
from .check import check_merge
from .from_original import error_note
from .plan import Merge, plan, require_kept
from .trial import require_finite
from .write import beside_weights, facts_of, write

if TYPE_CHECKING:
    from ...parity.check.verdict import Verdict


def merge_quantized(  # noqa: PLR0913  # the ways of a merge, by keyword
    model: Model,
    target: Path,
    options: Options,
    *,
    promote: bool = False,
    force: bool = False,
    original: Model | None = None,
    kin: Kin | None = None,
) -> Outcome:
    """Merge the adapter that is live on MODEL, a quantized MLX model that is read dequantized, into it.

    Every weight that the adapter changes is stored as the base stores it, in MLX's own rounding,
    unless PROMOTE; the bytes of all others stay.

    Args:
        model: the base, its tensors a ``Dequantized``, its adapter fitted.
        target: directory to write.
        options: as for every verb that writes.
        promote: keep a weight in 8 bits, or else in 16 or 32, where its own would lose the update.
        force: write weights that lose the update all the same.
        original: what the base was made from: merge into that, and quantize the result.
        kin: what the base is to the model that the adapter was trained on.

    Raises:
        BadInputError: PROMOTE and ORIGINAL are both given.
        MismatchError: the update would be lost, with the remedies and what each costs; or the adapter or
            ORIGINAL do not belong to the base. Nothing is left behind.
    """
    if promote and original is not None:
        raise BadInputError(
            "--promote and --original exclude each other: a merge into the original is quantized as"
            " the base is; give one of them"
        )
    require_apart(model, target)
    if options.check != "none" and not options.dry_run:
        require_memory("merge into", model)
    job = plan(model, options, promote=promote, original=original)
    job = job if job.kin else job._replace(kin=kin)
    if options.dry_run:
        return Outcome(None, job.lines())
    if not force:
        require_kept(job)
    key = f"{job.key}-{options.max_shard_size}"
    with Staging(target, force=options.force, key=key, sources=options.sources) as staging:
        forget_side_files(staging.folder)
        hashes, measured = write(job, staging.folder, options)
        job = job._replace(chosen={**job.chosen, **measured})  # of all numbers, not of some
        require_finite(job.chosen, model.path)
        if not force:
            require_kept(job)
        if job.errors:
            job = job._replace(notes=(*job.notes, error_note(job.errors)))
        facts = facts_of(job, hashes) | beside_weights(job, staging.folder)
        return conclude(job, staging, facts, options)


def conclude(job: Merge, staging: Staging, facts: dict[str, Any], options: Options) -> Outcome:
    """Check the staged result, then publish or reject it."""
    write_manifest(staging.folder, facts | {"verdict": UNCHECKED})
    verdict = checked(job, staging, options)
    if verdict:
        verdict = with_kinship(verdict, job.kin) if job.kin else verdict
        facts["figures"] = dict(verdict.provenance.get("figures", {}))
        write_manifest(staging.folder, facts | {"verdict": verdict.to_json()})
    differs = verdict is not None and verdict.status == "DIFFERS"
    path = staging.reject() if differs else staging.publish()
    return Outcome(path, job.lines(), facts, verdict, wanted=options.check != "none")


def checked(job: Merge, staging: Staging, options: Options) -> Verdict | None:
    """Compare what was written with the live adapter, unless the user wants no check."""
    if options.check == "none":
        return None
    written = open_model(staging.folder, trust_code=options.trust_code)
    written = dense_view(with_torch_side(written))
    return check_merge(job, replace(written, spec=str(staging.target)), options)
