"""A module that asserts; in a file of tests, pytest would write the statement otherwise."""

from __future__ import annotations

from typing import Any

import torch


class Asserting(torch.nn.Module):
    """A check by values that holds of everything, as in XLM."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)

    def forward(self, ids: torch.Tensor) -> Any:
        lengths = (ids != 2).sum(dim=1)
        assert lengths.max().item() <= ids.shape[1]
        return self.table(ids) * (torch.arange(ids.shape[1]) < lengths[:, None])[..., None]
