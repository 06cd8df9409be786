"""Quantized MLX models seen as the dense ones that they stand for."""

from __future__ import annotations

from dataclasses import replace

from ..models import Model
from ..quantization import Dequantized, Recipe
from ..quantization.recipe import COPY, KEY


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
