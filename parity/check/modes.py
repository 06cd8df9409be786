"""Train mode: what a module was in before it was compared, which is always in eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...converters.models import Model
from ...converters.models.factories import framework_or_none


def in_train_mode(module: Any) -> bool:
    """Say whether MODULE, of torch or MLX, or a module in it is in train mode."""
    framework = framework_or_none(module)
    if framework is None:
        return False
    inner = module.modules()
    return any(bool(it.training) for it in inner)


def notes_on_modes(*models: Model | None) -> Iterator[str]:
    """Yield a line for each of MODELS whose module was given in train mode."""
    for model in models:
        if model is not None and in_train_mode(model.factory):
            yield (
                f"{model.spec} as it was given, in train mode: it was compared in eval mode,"
                " without dropout and with running statistics"
            )
