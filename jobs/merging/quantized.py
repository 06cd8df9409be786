"""Merge an adapter into a quantized base: planned, written, checked; refused where it would be lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models import Model
from ...converters.models import open as open_model
from ...converters.planning.memory import require_memory
from ...converters.planning.view import dense_view
from ...converters.results.targets import absolute
from ...errors import BadInputError
from ..converting import forget_side_files, require_apart
from ..options import Options
from ..pipeline import Checked, Facts, Outcome, Target, Written, publish
from ..provenance.base import UNKNOWN, Provenance, unrounded, with_provenance
from .check import check_merge
from .from_original import error_note
from .plan import Merge, plan, require_kept
from .trial import require_finite
from .write import beside_weights, facts_of, write


def merge_quantized(  # the ways of a merge, by keyword
    model: Model,
    target: Target,
    options: Options,
    *,
    promote: bool = False,
    original: Model | None = None,
    provenance: Provenance | None = None,
) -> Outcome:
    """Merge the adapter that is live on MODEL, a quantized MLX model that is read dequantized, into it.

    Every weight that the adapter changes is stored as the base stores it, in MLX's own rounding,
    unless PROMOTE; the bytes of all others stay.

    Args:
        model: the base, its tensors a ``Dequantized``, its adapter fitted.
        target: the directory to write.
        options: as for every verb; with ``force`` weights that lose the update are written too.
        promote: keep a weight in 8 bits, or else in 16 or 32, where its own would lose the update.
        original: what the base was made from: merge into that, and quantize the result.
        provenance: what the base is to the model that the adapter was trained on.

    Raises:
        BadInputError: PROMOTE and ORIGINAL are both given.
        MismatchError: the update would be lost, with the remedies and what each costs; or the adapter or
            ORIGINAL do not belong to the base. Nothing is left behind.
    """
    require_one_way(promote=promote, original=original)
    require_apart(model, target.path)
    if options.checks and not options.dry_run:
        require_memory("merge into", model)
    job = plan(model, options, promote=promote, original=original)
    job = job if job.provenance else job._replace(provenance=provenance)
    if options.dry_run:
        return target.planned(job.lines())
    if not options.force:
        require_kept(job)
    merging = Merging(job, target.path, options)
    check = None if not options.checks else merging.check
    return publish(target, f"{job.key}-{options.max_shard_size}", merging.write, check)


def require_one_way(*, promote: bool, original: Model | None) -> None:
    """Refuse two ways at once.

    Raises:
        BadInputError: both are asked for.
    """
    if promote and original is not None:
        raise BadInputError(
            "--promote and --original exclude each other: a merge into the original is quantized as"
            " the base is; give one of them"
        )


class Merging:
    """A merge being carried out; what is known of JOB grows when all of it has been measured."""

    def __init__(self, job: Merge, target: Path, options: Options) -> None:
        self.job, self.target, self.options = job, absolute(target), options

    def write(self, folder: Path) -> Written:
        """Write the weights and what lies beside them, unless the update is lost in them."""
        forget_side_files(folder)
        hashes, measured = write(self.job, folder, self.options)
        job = self.job._replace(chosen={**self.job.chosen, **measured})  # of all numbers
        require_finite(job.chosen, job.model.path)
        if not self.options.force:
            require_kept(job)
        if job.errors:
            job = job._replace(notes=(*job.notes, error_note(job.errors)))
        self.job = job
        return Written(facts_of(job, hashes) | beside_weights(job, folder), job.lines())

    def check(self, folder: Path, _: Facts) -> Checked:
        """Compare what was written with the live adapter."""
        written = open_model(folder, trust_code=self.options.trust_code)
        written = dense_view(with_torch_side(written))
        verdict = check_merge(self.job, replace(written, spec=str(self.target)), self.options)
        assert self.job.model.adapter is not None  # noqa: S101  (it was merged)
        others = unrounded(self.job.model.adapter, self.job.rounded)
        provenance = (self.job.provenance or UNKNOWN)._replace(unrounded=others)
        verdict = with_provenance(verdict, provenance)
        return Checked(verdict, {"figures": dict(verdict.provenance.get("figures", {}))})
