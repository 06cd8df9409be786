"""A config as an MLX class reads it, made into a transformers config again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from .translation import Config, Translation, difference, undone

# What mlx-lm writes of its own packed weights; transformers would look for a quantizer.
PACKED: Final = ("quantization", "quantization_config")


def to_torch(config: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> Translation:
    """Return CONFIG as transformers reads it.

    Args:
        config: of an MLX directory.
        recorded: what the manifest of the directory says was ``added``, ``changed`` and ``removed``;
            it is undone exactly. Without it the directory is mlx-lm's own: keys stay, for
            transformers reads those of version 4 too, and mlx-lm's quantization goes.
    """
    result = copy.deepcopy(dict(config)) if recorded is None else undone(config, recorded)
    if recorded is None:
        forget_packing(result)
        result.pop("model_file", None)  # Weighbridge's own, for no other is opened
    return difference(config, result)


def forget_packing(config: Config) -> None:
    """Take out the quantization that mlx-lm recorded; a method that transformers knows stays."""
    packed = config.pop("quantization", None)
    method = config.get("quantization_config")
    if packed is not None and (method == packed or "quant_method" not in (method or {})):
        config.pop("quantization_config", None)
