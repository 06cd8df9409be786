"""Operations of PyTorch that several formats lack, computed by others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def distances(one: Tensor, other: Tensor, p: float = 2, _: Any = None) -> Tensor:
    """Return how far each row of ONE is from each of OTHER, by the norm P."""
    apart = torch.abs(one.unsqueeze(-2) - other.unsqueeze(-3))
    if p == 2:
        return torch.sqrt(torch.square(apart).sum(-1))
    if p == 1:
        return apart.sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    if p == 0:
        return torch.ne(apart, 0).to(apart.dtype).sum(-1)
    return torch.pow(torch.pow(apart, p).sum(-1), 1 / p)
