"""Which directories in MLX's layout a class that comes with Weighbridge reads, and made from what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import WeighbridgeError
from ...libraries.target import OWN
from ...models import Model


def has_own_class(model: Model) -> bool:
    """Say whether a class that comes with Weighbridge is for MODEL, a directory in MLX's layout."""
    if model.framework != "mlx" or model.factory is not None or model.path is None:
        return False
    return model.library is not None and model.library.library == OWN


def class_config(model: Model) -> Mapping[str, Any]:
    """Return the configuration that MODEL's class is made from.

    Where the class is ours it names what the files hold, which is known of a tabled family and which
    ``architectures`` need not say.
    """
    if model.family is None or not has_own_class(model):
        return model.config
    return {**model.config, "architectures": [model.family.torch_class]}


def refusal(model: Model) -> str:
    """Return why the class of MODEL does not take its configuration; empty where it does."""
    try:
        if model.library is not None:
            next(model.library.parts(class_config(model)))
    except WeighbridgeError as error:
        return str(error)
    return ""
