"""Batches on which a captured module would decide by a mask otherwise than it was recorded: refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...converters.values import Array
from ...errors import UnsupportedError


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
