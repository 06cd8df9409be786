"""Counting and rows in bags against torch."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

ROWS = torch.tensor([0, 2, 2, 1, 4, 3, 3])
STARTS = torch.tensor([0, 3, 3, 5])
BAGS = partial(functional.embedding_bag, ROWS)
PAIRS = partial(functional.embedding_bag, ROWS[:6].reshape(2, 3), padding_idx=2)


def test_histograms(agree):
    agree(
        {
            "within": (lambda x: torch.histc(x, 5, -1, 1), (50,)),
            "of its own range": (lambda x: torch.histc(x, 7), (50,)),
            "of one value": (lambda x: torch.histc(x * 0 + 2, 4), (5,)),
            "of ids": (lambda x: torch.histc(x.float(), 6, 0, 5), torch.arange(40) % 7),
        }
    )


def test_places_that_are_not_zero(agree):
    agree(
        {
            "some": (lambda x: torch.nonzero_static(x > 0, size=3), (3, 4)),
            "more than there are": (
                lambda x: torch.nonzero_static(x > 0, size=15, fill_value=7),
                (3, 4),
            ),
        }
    )


def test_bags_of_rows(agree):
    modes = {
        mode: (partial(_second, BAGS, STARTS, mode=mode), (5, 3)) for mode in ("sum", "mean", "max")
    }
    last = {
        f"{mode}, the last one": (
            partial(_second, BAGS, STARTS, mode=mode, padding_idx=-1),
            (5, 3),
        )
        for mode in modes
    }
    padded = {
        f"{mode}, padded": (partial(_second, PAIRS, None, mode=mode), (5, 3)) for mode in modes
    }
    ends = torch.cat([STARTS, torch.tensor([7])])
    weighted = lambda table, w: BAGS(  # noqa: E731
        table, ends, mode="sum", per_sample_weights=w, include_last_offset=True
    )
    agree(modes | last | padded | {"weighted": (weighted, (5, 3), (7,))})


def _second(function, offsets, table, **options):
    return function(table, offsets, **options)
