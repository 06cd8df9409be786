"""A model seen as another one as it is read: of the other framework, or dense."""

from __future__ import annotations

from dataclasses import replace

from ..maps.execution.view import Mapped
from ..models import Model
from ..quantization import Dequantized, Recipe
from ..quantization.recipe import COPY, KEY
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


def dense_view(model: Model, dtype: str = "F32") -> Model:
    """Return MODEL with its quantized weights shown as the numbers that they stand for, in DTYPE.

    A model that is not quantized is returned as it is.

    Raises:
        MismatchError: its tensors do not fit what its config says of their quantization.
    """
    recipe = Recipe.parse(model.config)
    if recipe is None or model.framework != "mlx":
        return model
    config = {key: value for key, value in model.config.items() if key not in {KEY, COPY}}
    tensors = Dequantized(model.checkpoint, model.config, dtype=dtype)
    return replace(model, config=config, tensors=tensors)
