"""Quantized MLX models seen as the dense ones that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ...errors import BadInputError
from ..models import Model
from ..quantization import Dequantized, Recipe
from ..quantization.recipe import COPY, KEY

DTYPES: Final[Mapping[str, str]] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


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


def dequantized(model: Model, dtype: str) -> Model:
    """Return MODEL with its quantized weights shown in DTYPE, a key of ``DTYPES``.

    Raises:
        BadInputError: none of them is quantized as MLX does it, or its config does not say how.
        MismatchError: its tensors do not fit what its config says of their quantization.
    """
    dense = dense_view(model, DTYPES[dtype])
    if dense is model and model.framework == "mlx":
        Dequantized(model.checkpoint, {})  # says what is missing, where codes are there
    if not isinstance(dense.tensors, Dequantized) or not dense.tensors.schemes:
        raise BadInputError(
            f"{model.spec} has no weights that MLX quantized; leave --dequantize out"
        )
    return dense
