"""Merge an adapter into a quantized base: surveyed, chosen, written; refused where it would be lost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ... import __version__
from ...converters.adapters.merging.affected import Touched
from ...converters.adapters.merging.statistics import ENOUGH, ERASED, Measured, Price, Tally
from ...converters.adapters.merging.survival import lines, refusal
from ...converters.checkpoints import Header, Staging, Writer
from ...converters.checkpoints.workers import Workers
from ...converters.models import Model
from ...converters.models import open as open_model
from ...converters.models.config_fields import read_config
from ...converters.quantization import Dequantized
from ...converters.results.sources import stamps
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from ..bases import Kin, dense_view, with_kinship
from ..configuring import CONFIG
from ..convert import carry_origin, forget_side_files, require_apart, side_files
from ..manifest import manifest_of, write_manifest
from ..needs import require_memory
from ..options import UNCHECKED, Options, Outcome
from ..provenance.merged_before import adapters_recorded
from .from_original import SAME, afresh, price_lines, price_note
from .remedies import offers, promotions
from .trial import (
    Survey,
    changes_of,
    require_finite,
    survey,
    survivals,
    tensors_of,
    touched_by,
)

if TYPE_CHECKING:
    from ...parity.check.verdict import Verdict

METADATA: Final = {"format": "mlx"}  # what safetensors files of MLX say of themselves


class Merge(NamedTuple):
    """A merge, planned.

    Attributes:
        model: the base, seen dense, its adapter live.
        tensors: its tensors.
        layers: the weights to make, by name.
        chosen: the form of each that the adapter changes, and what it keeps.
        survey: what was tried; empty for a merge into the original.
        reference: what the result stands for: MODEL, or the original with the adapter live.
        notes: what a person should know of the result.
        kin: what the original is to the base, in a merge into the original; otherwise what the base
            is to the model that the adapter was trained on.
    """

    model: Model
    tensors: Dequantized
    layers: Mapping[str, Touched]
    chosen: Mapping[str, Measured]
    survey: Survey
    reference: Model
    notes: tuple[str, ...]
    kin: Kin | None = None

    @property
    def anew(self) -> bool:
        """Whether all layers are made, those that nothing changes too."""
        afresh = self.reference is not self.model
        return afresh and self.kin is not None and self.kin.status != SAME

    @property
    def prices(self) -> dict[str, Price]:
        """What the rounding costs, by name; of a merge into the original alone."""
        return {name: it.price for name, it in self.chosen.items() if it.price}

    def form(self, name: str) -> Any:
        """Return the form in which the layer NAME is written."""
        return self.chosen[name].form if name in self.chosen else self.layers[name].own

    @property
    def made(self) -> list[str]:
        """The layers that are made anew; an update of nothing leaves a weight's bytes alone."""
        return [
            name
            for name in self.layers
            if self.anew or name not in self.chosen or self.chosen[name].changed
        ]

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
        text = json.dumps([__version__, "merge", stamps(files), forms])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def lines(self) -> tuple[str, ...]:
        """Return what is kept of every update, the worst first, and how."""
        ways = offered(self) if self.below else []
        notes = [f"note: {note}" for note in (*self.notes, *sampled(self))]
        table = (
            price_lines(self.prices, self.chosen) if self.prices else lines(survivals(self.chosen))
        )
        return (*table, *notes, *ways)

    @property
    def below(self) -> bool:
        """Whether a layer is below the bar."""
        return any(it.verdict != ENOUGH for it in self.chosen.values())


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
    """Merge the adapter that is live on MODEL, a quantized MLX model seen dense, into it.

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
        MismatchError: the update would be lost, and the ways out with their price; or the adapter
            or ORIGINAL do not belong to the base. Nothing is left behind.
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
        if job.prices:
            job = job._replace(notes=(*job.notes, price_note(job.prices)))
        facts = facts_of(job, hashes) | beside_weights(job, staging.folder)
        return conclude(job, staging, facts, options)


def plan(model: Model, options: Options, *, promote: bool, original: Model | None) -> Merge:
    """Measure every layer in every form that matters, and choose; nothing is written."""
    tensors = tensors_of(model)
    if original is not None:
        return plan_afresh(model, original, tensors, options)
    layers = {it.name: it for it in touched_by(changes_of(model), tensors)}
    found = survey(layers.values())
    chosen = {name: it.best if promote else it.own for name, it in found.items()}
    require_finite(chosen, model.path)
    notes = (*promotions(found, chosen), *widening(chosen, found))
    return Merge(model, tensors, layers, chosen, found, model, notes)


def plan_afresh(model: Model, original: Model, tensors: Dequantized, options: Options) -> Merge:
    """Plan a merge into ORIGINAL."""
    it = afresh(model, original, tensors, options)
    layers = {layer.name: layer for layer in it.layers}
    changed = [layer for layer in it.layers if layer.change is not None]
    found = survey(changed, climb=False)
    chosen = {name: one.own for name, one in found.items()}
    require_finite(chosen, original.path)
    if unfit := [f"{name} does not fit {one.form}" for name, one in chosen.items() if not one.fits]:
        raise MismatchError("merged values are too large for the base's dtype", unfit)
    kin = Kin(it.kin.status, it.kin.said, certain=it.kin.certain)
    return Merge(model, tensors, layers, chosen, {}, it.original, tuple(it.notes), kin)


def widening(chosen: Mapping[str, Measured], found: Survey) -> Iterator[str]:
    """Yield what is to be said of layers whose dtype is another than the base's."""
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
        MismatchError: it does; tells the ways out and such layers, the worst first.
    """
    if not job.lost:
        return
    summary = (
        f"merging would round the adapter away in {len(job.lost)} of {len(job.chosen)} layers of"
        f" {job.model.path}. The ways out:"
    )
    ways = [f"\n  {way}" for way in offered(job)]
    ways.append("\n  or --force, which writes what is left of it. Layers, the worst first")
    raise MismatchError(summary + "".join(ways), refusal(survivals(job.chosen)))


def offered(job: Merge) -> list[str]:
    """Return the ways out; of a merge into the original its own price comes first."""
    return [*([price_note(job.prices)] if job.prices else []), *offers(job.model, job.survey)]


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


def write(job: Merge, folder: Path, options: Options) -> tuple[dict[str, str], dict[str, Measured]]:
    """Write the tensors of JOB into FOLDER, those untouched byte for byte.

    Returns:
        The hashes of all, and what is kept of each update, all of its numbers measured; of those
        too that an interrupted run had written.
    """
    layout = job.layout
    writer = Writer(folder, layout, metadata=METADATA, max_shard_size=options.max_shard_size)
    advance = options.report(
        "writing the weights", sum(header.nbytes for header in layout.values())
    )
    counting, measured = Lock(), dict[str, Measured]()
    replaced = {full for name in job.made for full in part_names(job.tensors, name)}
    copied = [name for name in layout if name not in replaced and name in job.tensors.raw.headers]

    def put(name: str) -> None:
        fresh = make(job, name, measured) if name in replaced else {}
        for part in fresh or (name,):
            if part not in writer.finished:
                writer.write(part, fresh[part] if fresh else job.tensors.raw.stream(part))
            with counting:
                advance(layout[part].nbytes)

    Workers().each(copied, put, own=job.made)  # MLX, which quantizes, is for one thread
    return writer.close(), measured


def make(job: Merge, name: str, measured: dict[str, Measured]) -> dict[str, Array]:
    """Return the tensors that store the layer NAME; MEASURED gets what they keep of its update."""
    layer, form = job.layers[name], job.form(name)
    tally = Tally(layer, form)
    made = layer.made(form, tally.add)
    if name in job.chosen:
        measured[name] = tally.measured()
    return made


def beside_weights(job: Merge, folder: Path) -> dict[str, Any]:
    """Write what lies beside the weights into FOLDER; return what the manifest says of it."""
    facts = {
        "side_files": side_files(job.model, folder)._asdict(),
        **carry_origin(job.model, folder),
    }
    changes = {
        name.removesuffix(".weight"): job.form(name).scheme
        for name in job.made
        if job.form(name).scheme != job.layers[name].own.scheme
    }
    recipe = job.tensors.recipe
    if changes and recipe and job.model.path:
        config = recipe.changed(changes).applied_to(read_config(job.model.path))
        text = json.dumps(config, indent=4) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
    return {key: value for key, value in facts.items() if value}


def facts_of(job: Merge, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what ``weighbridge.json`` says of the merge."""
    model, adapter = job.model, job.model.adapter
    return {
        "weighbridge": __version__,
        "framework": model.framework,
        "source": {
            "spec": model.spec,
            "framework": model.framework,
            "tensors": manifest_of(model).get("source", {}).get("tensors", {}),
        },
        "adapter": str(adapter.path) if adapter else None,
        **adapters_recorded(model, job.reference),
        "original": job.reference.spec if job.prices else None,
        "map": model.map_text,
        "sizes": dict(model.sizes),
        "tensors": hashes,
        "merged": {
            name: {
                **it.survival._asdict(),
                "form": str(it.form),
                "verdict": it.verdict,
                **({"part": list(it.part)} if it.part else {}),
                **(job.prices[name]._asdict() if name in job.prices else {}),
            }
            for name, it in sorted(job.chosen.items())
        },
        "notes": list(job.notes),
    }


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
    """Weigh what was written against the live adapter, unless the user wants no check."""
    if options.check == "none":
        return None
    from .check import weigh_merge

    written = dense_view(open_model(staging.folder, trust_code=options.trust_code))
    return weigh_merge(job, replace(written, spec=str(staging.target)), options)
