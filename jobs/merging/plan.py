"""A merge into a quantized base, planned: every weight measured, its form chosen, nothing written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ...converters.adapters.merging.affected import AffectedWeight
from ...converters.adapters.merging.statistics import ENOUGH, ERASED, Measured, QuantizationErrors
from ...converters.adapters.merging.survival import idle, lines, refusal
from ...converters.checkpoints import Header
from ...converters.models import Model
from ...converters.quantization import Dequantized
from ...converters.results.sources import job_key
from ...errors import MismatchError
from ..options import Options
from ..provenance.base import Provenance
from .from_original import SAME, error_lines, error_note, from_original
from .remedies import promotions, remedies
from .rounded import grids_note, trained_rounded
from .trial import (
    Trials,
    affected_weights,
    changes_of,
    require_finite,
    survivals,
    tensors_of,
    try_forms,
)


class Merge(NamedTuple):
    """A merge, planned.

    Attributes:
        model: the base, dequantized as it is read, its adapter live.
        tensors: its tensors.
        layers: the weights to make, by name.
        chosen: the form of each that the adapter changes, and what it keeps.
        trials: what was tried; empty for a merge into the original.
        reference: what the result stands for: MODEL, or the original with the adapter live.
        notes: what a person should know of the result.
        provenance: what the original is to the base, in a merge into the original; otherwise
            what the base is to the model that the adapter was trained on.
    """

    model: Model
    tensors: Dequantized
    layers: Mapping[str, AffectedWeight]
    chosen: Mapping[str, Measured]
    trials: Trials
    reference: Model
    notes: tuple[str, ...]
    provenance: Provenance | None = None

    @property
    def requantizes_all(self) -> bool:
        """Whether all layers are made, those that nothing changes too."""
        from_original = self.reference is not self.model and not self.rounded
        return from_original and self.provenance is not None and self.provenance.status != SAME

    @property
    def errors(self) -> dict[str, QuantizationErrors]:
        """The quantization errors, by name; of a merge into the original alone."""
        return {name: it.errors for name, it in self.chosen.items() if it.errors}

    def form(self, name: str) -> Any:
        """Return the form in which the layer NAME is written."""
        return self.chosen[name].form if name in self.chosen else self.layers[name].own

    @property
    def made(self) -> list[str]:
        """The layers that are written again; an update of nothing leaves a weight's bytes alone."""
        return [
            name
            for name in self.layers
            if self.requantizes_all or name not in self.chosen or self.chosen[name].changed
        ]

    @property
    def rounded(self) -> list[str]:
        """The layers whose update was trained on the base's own grid: what counts is the rounded sum."""
        return [name for name in self.chosen if self.layers[name].trained_rounded]

    @property
    def lost(self) -> list[str]:
        """The layers in which the adapter would be lost."""
        return [name for name, it in self.chosen.items() if it.verdict == ERASED]

    @property
    def layout(self) -> dict[str, Header]:
        """The tensors to be written, in the order of the base."""
        raw, layout = self.tensors.raw.headers, {}
        homes = {full: name for name in self.made for full in part_names(self.tensors, name)}
        for full, header in raw.items():
            name = homes.get(full)
            if name is None:
                layout[full] = header
            elif name == full:  # and its scales follow where the weight stands
                layout |= self.form(name).layout(name, self.layers[name].shape)
        return layout

    @property
    def key(self) -> str:
        """A fingerprint of the job: an interrupted run resumes only if nothing of it changed."""
        files = [*self.tensors.files, *self.reference.checkpoint.files, *adapter_files(self.model)]
        forms = [(name, str(self.form(name))) for name in self.made]
        return job_key(files, "merge", forms)

    def lines(self) -> tuple[str, ...]:
        """Return what is kept of every update, the worst first, and how."""
        ways = remedies_for(self) if self.below else []
        notes = [f"note: {note}" for note in (*self.notes, *unmoved(self), *sampled(self))]
        table = (
            error_lines(self.errors, self.chosen) if self.errors else lines(survivals(self.chosen))
        )
        return (*table, *notes, *ways)

    @property
    def below(self) -> bool:
        """Whether a layer is below the bar."""
        return any(it.verdict != ENOUGH for it in self.chosen.values())


def plan(model: Model, options: Options, *, promote: bool, original: Model | None) -> Merge:
    """Measure every layer in every form that matters, and choose; nothing is written."""
    tensors = tensors_of(model)
    if original is not None:
        return plan_from_original(model, original, tensors, options)
    rounded = trained_rounded(model, tensors)
    affected = affected_weights(changes_of(model), tensors, None, rounded)
    layers = {it.name: it for it in affected}
    found = try_forms(layers.values())
    chosen = {name: it.best if promote else it.own for name, it in found.items()}
    require_finite(chosen, model.path)
    notes = (*promotions(found, chosen), *widening(chosen, found), *grids_note(model, rounded))
    return Merge(model, tensors, layers, chosen, found, model, notes)


def plan_from_original(
    model: Model, original: Model, tensors: Dequantized, options: Options
) -> Merge:
    """Plan a merge into ORIGINAL."""
    it = from_original(model, original, tensors, options)
    layers = {layer.name: layer for layer in it.layers}
    changed = [layer for layer in it.layers if layer.change is not None]
    found = try_forms(changed, widen=False)
    chosen = {name: one.own for name, one in found.items()}
    require_finite(chosen, original.path)
    if unfit := [f"{name} does not fit {one.form}" for name, one in chosen.items() if not one.fits]:
        raise MismatchError("merged values are too large for the base's dtype", unfit)
    provenance = Provenance(
        it.provenance.status, it.provenance.message, certain=it.provenance.certain
    )
    rounded = [name for name in chosen if layers[name].trained_rounded]
    notes = (*it.notes, *grids_note(model, rounded))
    return Merge(model, tensors, layers, chosen, {}, it.original, notes, provenance)


def widening(chosen: Mapping[str, Measured], found: Trials) -> Iterator[str]:
    """Yield a note on layers whose dtype is another than the base's."""
    others = {
        it.form.dtype
        for name, it in chosen.items()
        if it.form.dtype not in (found[name].own.form.dtype, "U8")
    }
    if others:
        yield (
            f"some of these are in {' and '.join(sorted(others))}, not in the dtype of the base: MLX"
            " computes in float32 from there on where the two meet"
        )


def require_kept(job: Merge) -> None:
    """Refuse a merge that rounds the adapter away.

    Raises:
        MismatchError: it does; lists the remedies and such layers, the worst first.
    """
    if not job.lost:
        return
    summary = (
        f"merging would round the adapter away in {len(job.lost)} of {len(job.chosen)} layers of"
        f" {job.model.path}. The remedies:"
    )
    ways = [f"\n  {way}" for way in remedies_for(job)]
    ways.append("\n  or --force, which writes what is left of it. Layers, the worst first")
    raise MismatchError(summary + "".join(ways), refusal(survivals(job.chosen)))


def remedies_for(job: Merge) -> list[str]:
    """Return the remedies; of a merge into the original its quantization error comes first."""
    return [*([error_note(job.errors)] if job.errors else []), *remedies(job.model, job.trials)]


def unmoved(job: Merge) -> list[str]:
    """Say that training on the base's own grid moved no code of some layers, where it did not."""
    still = [name for name in job.rounded if idle(job.chosen[name].survival)]
    if not still:
        return []
    which = f"of {len(still)} of {len(job.rounded)} layers trained so no code has moved"
    cure = (
        "train longer, or with a learning rate that carries updates over half a step of the codes"
    )
    return [f"{which}, and they are those of the base: {cure}"]


def sampled(job: Merge) -> list[str]:
    """Say that some figures are of a part of the weights, where they are."""
    some = [n for n, it in job.chosen.items() if it.seen < prod(job.layers[n].shape)]
    if not some:
        return []
    whole = f"{len(some)} of {len(job.chosen)} layers"
    return [f"figures of {whole} are of some of their rows; all are measured when they are written"]


def part_names(tensors: Dequantized, name: str) -> Collection[str]:
    """Return the names of the tensors that store the weight NAME."""
    return tensors.part_names(name).values() if name in tensors.schemes else (name,)


def adapter_files(model: Model) -> list[Path]:
    """Return the files of the adapter on MODEL."""
    path = model.adapter.path if model.adapter else None
    if path is None or path.is_file():
        return [path] if path else []
    return sorted(file for file in path.iterdir() if file.is_file())
