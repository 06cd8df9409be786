"""A model as the other framework names it, converted as it is read."""

from __future__ import annotations

from dataclasses import replace

from ..maps.execution.view import Mapped
from ..models import Model
from .conversion import conversion_of
from .job import plan_job


def converted_view(model: Model, framework: str, original: str | None = None) -> Model:
    """Return MODEL as if its directory were one of FRAMEWORK; nothing is written.

    ORIGINAL is the checkpoint that an MLX model comes from, where it is needed on the way back.

    Raises:
        WeighbridgeError: no map leads there.
    """
    if model.framework == framework:
        return model
    conversion = conversion_of(replace(model, adapter=None), framework, original)
    job = plan_job(conversion)
    return replace(
        model,
        framework=framework,
        config=conversion.config,
        adapter=None,
        tensors=Mapped(job.plan, job.checkpoint),
        map_text=str(job.table) if job.table else None,
        config_changes={},
    )
