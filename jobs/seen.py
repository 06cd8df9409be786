"""A model seen from the other framework, converted as it is read."""

from __future__ import annotations

from dataclasses import replace

from ..converters.maps.execution.view import Mapped
from ..converters.models import Model
from .configuring import translated
from .convert import plan_job
from .options import Options


def seen_from(model: Model, framework: str, options: Options = Options()) -> Model:
    """Return MODEL as if its directory were one of FRAMEWORK; nothing is written.

    Raises:
        WeighbridgeError: no map leads there.
    """
    if model.framework == framework:
        return model
    job = plan_job(replace(model, adapter=None), framework, options)
    made = translated(model, framework, options.original)
    return replace(
        model,
        framework=framework,
        config=made.config if made else model.config,
        adapter=None,
        tensors=Mapped(job.plan, job.checkpoint),
        map_text=str(job.table) if job.table else None,
        config_changes={},
    )
