"""Order and search against torch."""

from __future__ import annotations

import torch

EDGES = torch.tensor([-1.0, -0.25, 0.0, 0.0, 0.5, 2.0])
SOUGHT = torch.tensor([[0.0, -3.0, torch.nan], [torch.inf, 0.5, 0.3]])
CASES = {
    "one row": lambda x: torch.searchsorted(EDGES, x),
    "one row, right": lambda x: torch.searchsorted(EDGES, x, right=True),
    "one row, by side": lambda x: torch.searchsorted(EDGES, x, side="right"),
    "rows": lambda x: torch.searchsorted(EDGES.reshape(2, 3), x),
    "unordered": lambda x: torch.searchsorted(-EDGES, x, sorter=torch.arange(6).flip(0)),
    "in 32 bits": lambda x: torch.searchsorted(EDGES, x, out_int32=True),
    "a number": lambda x: torch.searchsorted(x[0, :1], 0.3),
    "buckets": lambda x: torch.bucketize(x, EDGES, right=True),
    "bucket of a number": lambda x: torch.bucketize(0.3, x[0, :1]),
}


def test_search(agree):
    agree({name: (function, SOUGHT) for name, function in CASES.items()})
