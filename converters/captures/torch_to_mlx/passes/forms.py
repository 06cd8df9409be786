"""Operations that MLX has as one kernel and PyTorch has not: what passes put in the place of several.

Each is declared to PyTorch, so that it has a schema and a handler as any other operation.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

_DECLARED: Final[Any] = torch.library.Library("weighbridge", "FRAGMENT")  # type: ignore[no-untyped-call]
_DECLARED.define("rope(Tensor x, Tensor wavelengths, float? base=None) -> Tensor")
_DECLARED.define("attention_mask(Tensor mask, ScalarType dtype) -> (Tensor, Tensor)")
_DECLARED.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor added, Tensor? alive, "
    "float dropout_p, float? scale) -> Tensor"
)

ROPE: Final[Any] = torch.ops.weighbridge.rope.default
ATTENTION_MASK: Final[Any] = torch.ops.weighbridge.attention_mask.default
ATTENTION: Final[Any] = torch.ops.weighbridge.attention.default


@torch.library.impl(_DECLARED, "attention_mask", "CompositeExplicitAutograd")
def _attention_mask(mask: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute what the handler computes, for masks that are constants."""
    if mask.dtype == torch.bool:
        added = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)
    else:
        added = mask
    alive = added.amax(-1, keepdim=True) > -math.inf
    return added.masked_fill(~alive, 0).to(dtype), alive.to(dtype)
