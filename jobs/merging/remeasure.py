"""A merge into a quantized base measured once more: from its files, and by none of what wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from ...converters.adapters.merging.affected import Base, Change, Index, blocks, with_change
from ...converters.adapters.merging.matrices import Matrices, squares
from ...converters.adapters.merging.statistics import Measured
from ...converters.adapters.merging.survival import Survival
from ...converters.checkpoints import Checkpoint
from ...converters.common.dtypes import FLOATS
from ...converters.models import Model
from ...converters.quantization import Dequantized
from ...converters.quantization.fingerprints import fingerprints
from ...converters.quantization.forms import Form, own_form
from .plan import Merge
from .trial import changes_of, labelled

CLOSE: Final = 1e-4  # of figures that differ in the order of their sums alone
ROUNDED: Final = 2.0  # times as far as rounding once more: scales may be rounded to fewer bits


class Kept(NamedTuple):
    """What a merge left on disk.

    Attributes:
        moved: the weights that the adapter truly changes: how much of it is there, by name; of
            experts the worst one's index beside it.
        alike: tensors that are the base's to the byte.
        problems: what is not as it should be, or not as it was reported.
    """

    moved: Mapping[str, tuple[Index, Survival]]
    alike: int
    problems: tuple[str, ...]


def remeasured(job: Merge, written: Model) -> Kept:
    """Measure what WRITTEN, opened from its files and dequantized, keeps of the adapter of JOB.

    What should be there is ``LowRank.applied_to`` of the base, or of the original, in float64. Every
    update counts, whatever the merge made of it; what none changes must be the base's bytes.
    """
    before, after = job.reference.checkpoint, written.checkpoint
    changes, problems = changes_of(job.model), list[str]()
    moved: dict[str, tuple[Index, Survival]] = {}
    for name, change in changes.items():
        if name not in after.headers or after.headers[name].shape != before.headers[name].shape:
            problems.append(f"{name} is missing, or of another shape")
            continue
        found = matrices_of(job, name, change, after)
        if found.changed:
            moved[name] = found.worst()
            problems += misreported(name, moved[name], job.chosen.get(name))
            problems += not_as_trained(job, name, after)
            problems += disturbed(job, name, found, after)
    left = [name for name in job.tensors.headers if name not in moved]
    if job.requantizes_all:
        problems += too_far_off(job, [name for name in left if is_float(job, name)], after)
        left = [name for name in left if not is_float(job, name)]
    alike = differing(left, job.tensors, after)
    return Kept(moved, len(left) - len(alike), (*problems, *alike, *unexpected(job, after)))


def matrices_of(job: Merge, name: str, change: Change, after: Checkpoint) -> Matrices:
    """Return the sums of the weight NAME as it was, with CHANGE, and as it is in AFTER."""
    old, new = job.reference.checkpoint.read(name), after.read(name)
    found = Matrices(change, own_form(job.tensors, name))
    grid = Base(job.tensors, name) if name in job.rounded and change is not None else None
    for place in blocks(old.shape, whole=bool(grid and grid.form.global_scale)):
        was = old[place].astype(np.float64)
        wanted = with_change(change, place, was)
        wanted = grid.form.decode(grid.nearest(place, wanted)) if grid else wanted
        found.add(place, was, wanted, new[place].astype(np.float64))
    return found


def misreported(
    name: str, found: tuple[Index, Survival], reported: Measured | None
) -> Iterator[str]:
    """Yield how the figures FOUND of the weight NAME are not those REPORTED by the merge."""
    part, it = found
    if reported is None:
        yield f"{name}: the adapter changes it, and the merge does not know of that"
    elif reported.fits and not (
        math.isclose(it.gain, reported.survival.gain, rel_tol=CLOSE, abs_tol=CLOSE)
        and math.isclose(it.cosine, reported.survival.cosine, abs_tol=CLOSE)
    ):
        yield (
            f"{labelled(name, part)}: gain {it.gain:.4f} and cosine {it.cosine:.4f} in the file,"
            f" {reported.survival.gain:.4f} and {reported.survival.cosine:.4f} while it was made"
        )


def not_as_trained(job: Merge, name: str, after: Checkpoint) -> Iterator[str]:
    """Yield that AFTER does not store the weight NAME as it was computed with in training, if that was rounded."""
    if name not in job.rounded:
        return
    if not isinstance(after, Dequantized) or name not in after.schemes:
        yield f"{name}: trained as {own_form(job.tensors, name)}, and stored as {form_of(after, name)}"
        return
    grid, found, change = Base(job.tensors, name), Base(after, name), changes_of(job.model)[name]
    before, wrong = job.reference.checkpoint.read(name), 0
    for place in blocks(before.shape, whole=grid.form.global_scale):
        wanted = with_change(change, place, before[place].astype(np.float64))
        stored = found.stored(place)
        parts = grid.nearest(place, wanted)
        wrong += sum(int((it != stored[part]).sum()) for part, it in parts.items())
    if wrong:
        yield f"{name}: {wrong} words of codes or scales are not those that it was trained by"


def disturbed(job: Merge, name: str, found: Matrices, after: Checkpoint) -> Iterator[str]:
    """Yield which experts of the weight NAME changed though their update is nothing."""
    still = [at for at in found.sums if not found.moves(at)]
    if not still:
        return
    kept = job.reference is job.model and own_form(job.tensors, name) == form_of(after, name)
    for at in still:
        limit = 0.0 if kept else rounding_limit(job, name, at, after)
        if not found.sums[at].realised <= limit:
            yield f"{labelled(name, at)}: nothing was to change, and it did"


def too_far_off(job: Merge, names: list[str], after: Checkpoint) -> Iterator[str]:
    """Yield which of the weights NAMES, requantized, are further off than rounding explains."""
    for name in names:
        found = matrices_of(job, name, None, after)
        for at, it in found.sums.items():
            if not it.realised <= rounding_limit(job, name, at, after):
                yield f"{labelled(name, at)}: further from the original than its rounding explains"


def rounding_limit(job: Merge, name: str, at: Index, after: Checkpoint) -> float:
    """Return how far rounding to the form that AFTER has may lie, as a sum of squares."""
    form, old = form_of(after, name), job.reference.checkpoint.read(name)[at]
    error = 0.0
    for place in blocks(old.shape, whole=form.global_scale):
        values = old[place].astype(np.float64)
        error += squares(form.decode(form.encode(values)) - values)
    return ROUNDED**2 * error


def form_of(checkpoint: Checkpoint, name: str) -> Form:
    """Return the form that the weight NAME has in CHECKPOINT, quantized or not."""
    if isinstance(checkpoint, Dequantized):
        return own_form(checkpoint, name)
    return Form(None, checkpoint.headers[name].dtype)


def is_float(job: Merge, name: str) -> bool:
    """Say whether NAME, as the base shows it, is a weight of floating-point numbers."""
    return job.tensors.headers[name].dtype in FLOATS


def differing(names: list[str], base: Dequantized, after: Checkpoint) -> list[str]:
    """Say which of the tensors NAMES are not the bytes of BASE."""
    old, new = fingerprints(base, names), fingerprints(after, names)
    return [f"{name}: not the bytes of the base" for name in names if old[name] != new.get(name)]


def unexpected(job: Merge, after: Checkpoint) -> Iterator[str]:
    """Yield the tensors that the base does not have."""
    yield from (
        f"{name}: not in the base" for name in after.headers if name not in job.tensors.headers
    )
