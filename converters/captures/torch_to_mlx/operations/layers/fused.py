"""What passes put in the place of several operations (see ``passes.forms``)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..registry import operation
from .attention import Mask, as_added, attend


@operation("weighbridge.rope.default")
def _rope(x: mx.array, wavelengths: mx.array, base: float | None = None) -> mx.array:
    """Rotate halves (Su et al. 2021, equation 34) at the positions 0, 1, 2, ... of the last axis but one.

    Where WAVELENGTHS are powers of BASE, to a float32's rounding that 16 bits do not see, MLX computes
    them itself: its kernel that reads them takes twice as long on an NVIDIA GPU.
    """
    short = base is not None and x.dtype in {mx.bfloat16, mx.float16}
    known = {"base": base, "freqs": None} if short else {"base": None, "freqs": wavelengths}
    return mx.fast.rope(x, x.shape[-1], traditional=False, scale=1.0, offset=0, **known)


@operation("weighbridge.attention_mask.default")
def _attention_mask(mask: mx.array, dtype: Any) -> tuple[mx.array, mx.array]:
    added, alive = as_added(mask, dtype[0])
    return added, mx.ones(1, dtype[0]) if alive is None else alive.astype(dtype[0])


@operation("weighbridge.attention.default")
def _attention(  # noqa: PLR0913, PLR0917 - the schema's
    query: mx.array,
    key: mx.array,
    value: mx.array,
    added: mx.array,
    alive: mx.array | None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> mx.array:
    return attend(query, key, value, Mask(added, alive), dropout_p, scale)
