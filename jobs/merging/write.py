"""A planned merge written: the weights that it changes, the bytes of all others, what lies beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

from ... import __version__
from ...converters.adapters.merging.statistics import Measured, Statistics
from ...converters.checkpoints import Writer
from ...converters.checkpoints.workers import Workers
from ...converters.models.config_fields import read_config
from ...converters.planning.config import CONFIG
from ...converters.planning.manifest import manifest_of
from ...converters.planning.transcoding import RECORDED, goes_back_packed
from ...converters.values import Array
from ..converting import carry_origin, side_files
from ..options import Options
from ..provenance.merged_before import adapters_recorded
from .plan import Merge, part_names, unmoved

METADATA: Final = {"format": "mlx"}  # what safetensors files of MLX say of themselves


def write(job: Merge, folder: Path, options: Options) -> tuple[dict[str, str], dict[str, Measured]]:
    """Write the tensors of JOB into FOLDER, those that nothing changes byte for byte.

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
    statistics = Statistics(layer, form)
    made = layer.made(form, statistics.add)
    if name in job.chosen:
        measured[name] = statistics.measured()
    return made


def beside_weights(job: Merge, folder: Path) -> dict[str, Any]:
    """Write what lies beside the weights into FOLDER; return what the manifest says of it."""
    facts = {
        "side_files": side_files(job.model, folder, job.model.framework)._asdict(),
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
        "original": job.reference.spec if job.errors else None,
        "map": model.map_text,
        **({} if goes_back_packed(model) else {RECORDED: {}}),  # the map is of weights seen dense
        "sizes": dict(model.sizes),
        "tensors": hashes,
        "merged": {
            name: {
                **it.survival._asdict(),
                "form": str(it.form),
                "verdict": it.verdict,
                **({"part": list(it.part)} if it.part else {}),
                **(job.errors[name]._asdict() if name in job.errors else {}),
            }
            for name, it in sorted(job.chosen.items())
        },
        "notes": [*job.notes, *unmoved(job)],
    }
