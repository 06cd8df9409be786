"""Train mode: what a module was in before it was compared, which is always in eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from ...converters.models import Model
from ...converters.models.factories import framework_or_none

SETTER: Final = "train"  # a class that has it keeps the mode for others


def in_train_mode(module: Any) -> bool:
    """Say whether MODULE, of torch or MLX, or a module in it is in train mode and computes by it."""
    framework = framework_or_none(module)
    if framework is None:
        return False
    inner = module.modules()
    return any(bool(it.training) and asks_for_mode(type(it)) for it in inner)


def asks_for_mode(kind: type) -> bool:
    """Say whether a method of KIND asks for the mode: of those that do not, every mode is the same.

    >>> class Norm:
    ...     def forward(self, x):
    ...         return x * 2 if self.training else x
    >>> asks_for_mode(Norm), asks_for_mode(dict)
    (True, False)
    """
    methods = (
        method
        for holder in kind.__mro__
        if SETTER not in vars(holder)
        for method in vars(holder).values()
    )
    return any(
        isinstance(it, FunctionType) and "training" in it.__code__.co_names for it in methods
    )


def notes_on_modes(*models: Model | None) -> Iterator[str]:
    """Yield a line for each of MODELS whose module was given in train mode."""
    for model in models:
        if model is not None and in_train_mode(model.factory):
            yield (
                f"{model.spec} as it was given, in train mode: it was compared in eval mode,"
                " without dropout and with running statistics"
            )
