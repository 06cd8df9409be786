"""Record more of a golden's source, where it is at hand."""

from __future__ import annotations

from dataclasses import replace

from ...converters.models import Model
from .golden import Golden


def record_again(golden: Golden, model: Model, storage: str, name: str) -> Golden:
    """Return GOLDEN with MODEL's outputs too, its weights kept in STORAGE, under NAME."""
    from .recorder import Recorder

    recorder = Recorder(model, golden.probes)
    rows = recorder.outputs(storage)
    errors = {f"{name}/float32": recorder.structure_errors(storage, rows)}
    outputs = {**golden.outputs, name: rows}
    return replace(golden, outputs=outputs, errors={**golden.errors, **errors})
