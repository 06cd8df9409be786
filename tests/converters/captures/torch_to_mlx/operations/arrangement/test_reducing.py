"""Reducing into places by index, with equal elements and zeros among them."""

from __future__ import annotations

from functools import partial

import pytest
import torch

THERE = torch.tensor([[1.0, 2, 0, 1], [2, 2, 1, 1], [0, 1, 0, 2], [5, 5, 5, 5]])
WRITTEN = torch.tensor([[1.0, 2, 2, 0], [3, 0, 1, 1], [3, 1, 0, 2]])
PLACES = torch.tensor([[0, 1, 1, 0], [2, 0, 0, 1], [2, 2, 2, 1]])
ROWS = torch.tensor([1, 1, 0])
KINDS = ("prod", "mean", "amax", "amin")


def scattered(x, y, **options):
    return x.scatter_reduce(0, PLACES, y, **options)


def indexed(x, y, **options):
    return x.index_reduce(0, ROWS, y, **options)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("function", [scattered, indexed])
def test_reductions_into_places(agree, function, include_self):
    kinds = (*KINDS, "sum") if function is scattered else KINDS
    agree(
        {
            kind: (partial(function, reduce=kind, include_self=include_self), THERE, WRITTEN)
            for kind in kinds
        }
    )


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
def test_older_names_of_reductions_into_places(agree):
    agree(
        {
            kind: (
                lambda x, y, kind=kind: x.scatter(0, PLACES, y, reduce=kind).detach(),
                THERE,
                WRITTEN,
            )
            for kind in ("add", "multiply")
        }
    )


def test_integers_are_reduced_into_places(agree):
    numbers = THERE.long(), WRITTEN.long()
    agree({kind: (partial(scattered, reduce=kind), *numbers) for kind in (*KINDS, "sum")})
