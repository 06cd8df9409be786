"""Writing by indices, at the edges: operands without axes, masks and values that broadcast."""

from __future__ import annotations

from functools import partial

import torch

FIRST = torch.tensor(0)
LOWER = torch.ones(3, 4).tril().bool()


def test_an_operand_without_axes_is_written_like_one_element(agree):
    agree(
        {
            "index_add": (lambda x, y: x.index_add(0, FIRST, y, alpha=2), (), ()),
            "index_copy": (lambda x, y: x.index_copy(0, FIRST, y), (), ()),
            "index_fill": (lambda x: x.index_fill(0, FIRST, 3.0), ()),
            "index_add to one": (lambda x, y: x.index_add(0, FIRST, y), (3,), (1,)),
        }
    )


def test_a_row_that_is_filled_twice_gives_its_gradient_once(agree):
    twice = torch.tensor([2, 1, 4, 2, 2])
    agree({"index_fill": (lambda x, y: x.index_fill(-1, twice, y), (3, 5), ())})


def test_masked_scatter_broadcasts_its_operand_and_its_mask(agree):
    agree(
        {
            "mask": (lambda x, y: x.masked_scatter(LOWER, y), (2, 3, 4), (24,)),
            "operand": (lambda x, y: x.masked_scatter(LOWER.expand(2, 3, 4), y), (3, 1), (24,)),
            "nothing": (lambda x, y: x.masked_scatter(LOWER & False, y), (2, 3, 4), (0,)),
        }
    )


def test_places_in_order_and_diagonals_are_written(agree):
    some = torch.tensor([0, 5, 2])
    agree(
        {
            "put": (lambda x, y: x.put(some, y), (3, 4), (3,)),
            "put and add": (lambda x, y: x.put(some // 2, y, accumulate=True), (3, 4), (3,)),
            "diagonal": (lambda x, y: x.diagonal_scatter(y, 1), (3, 4), (3,)),
            "diagonals": (lambda x, y: x.diagonal_scatter(y, -1, 2, 0), (2, 4, 3), (4, 2)),
        }
    )


def written_behind(mask, x, y):
    x = x.clone()
    x[:, mask] = y
    return x


def test_a_mask_takes_values_one_after_the_other(agree):
    rows = torch.tensor([True, False, True])
    agree(
        {
            "elements": (lambda x, y: x.index_put((LOWER,), y), (3, 4), (6,)),
            "rows": (lambda x, y: x.index_put((rows,), y), (3, 4), (2, 4)),
            "rows of one": (lambda x, y: x.index_put((rows,), y, accumulate=True), (3, 4), (2, 1)),
            "columns": (partial(written_behind, rows), (4, 3), (4, 2)),
            "columns of one": (partial(written_behind, rows), (4, 3), (2,)),
            "behind and before": (
                partial(written_behind, rows),
                (4, 3, 5),
                (4, 2, 5),
            ),
            "one row": (lambda x, y: x.index_put((rows,), y), (3, 4), (4,)),
            "one value": (lambda x, y: x.index_put((rows,), y), (3, 4), (1, 1)),
        }
    )
