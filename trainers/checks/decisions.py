"""Modules that no recording or copy holds, and batches for which a recorded one would decide otherwise: refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...converters.values import Array
from ...errors import UnsupportedError

# Packages of transformers whose attention goes by windows: torch.export takes minutes, and then refuses them.
WINDOWED: Final = ("transformers.models.led.", "transformers.models.longformer.")


def require_recordable(module: Any) -> None:
    """Refuse a MODULE with parts of which it is known that they cannot be recorded, before minutes are spent.

    Raises:
        UnsupportedError: it has one.
    """
    for part in module.modules():
        if type(part).__module__.startswith(WINDOWED):
            raise UnsupportedError(
                f"{type(part).__name__} attends in windows that it counts from the length of a text, which"
                " cannot be recorded for MLX; --backend torch trains it"
            )


def require_no_parameter_hooks(module: Any) -> None:
    """Refuse a MODULE with hooks of parameters: what trains are copies, which PyTorch makes without them.

    Raises:
        UnsupportedError: names the parameters and their hooks.
    """
    from ...converters.captures.torch_to_mlx.recording.hooks import hooks_of_parameters

    if found := [*hooks_of_parameters(module)]:
        raise UnsupportedError(
            "hooks of parameters would not act in training, which works on copies: compute with what is to"
            " train in forward, such as weight * mask, or write it into a torch.autograd.Function",
            found,
        )


def require_held(captured: Any, inputs: Mapping[str, Any], found: Array | float) -> None:
    """Refuse INPUTS if CAPTURED has FOUND NaN for them because a decision by a mask is another one.

    Raises:
        UnsupportedError: it is.
    """
    if not np.isnan(found).any():
        return
    import mlx.core as mx

    if not captured.holds({name: mx.array(value) for name, value in inputs.items()}):
        raise UnsupportedError(
            "the model decides by the values of a mask (as in `if mask.any()`): it was recorded as it"
            " decides for the first examples, and for this batch it decides otherwise; write the"
            " decision with torch.where, or train with --backend torch"
        )
