"""Sums of products by letters are what torch makes of them, and those of matrices are left to it."""

import pytest
import torch

from weighbridge.converters.captures.rewriting.einsums import einsum

SIZES = {"b": 2, "s": 3, "d": 4, "e": 5}


def operands_of(equation):
    torch.manual_seed(0)
    return [
        torch.randn(*(2, 3) if "..." in part else (), *(SIZES[it] for it in part.strip(".")))
        for part in equation.partition("->")[0].split(",")
    ]


@pytest.mark.parametrize(
    "equation",
    ["bsd,bsd->bs", "dd,bsd->bsd", "...d,de->...e", "b,b->", "bsd->b", "dd->", "dd->d", "...d,d->...", "bsd,d->sd",
     "bsd,bs->bd", "...d,...d->...", "bsd->dsb"],
)  # fmt: skip
def test_a_sum_is_what_torch_makes_of_it(equation):
    operands = operands_of(equation)
    torch.testing.assert_close(einsum(equation, operands), torch.einsum(equation, *operands))


@pytest.mark.parametrize("equation", ["bsd,ed->bse", "bd,be->bde", "bsd,de,bse->bs", "bsd,de"])
def test_products_of_matrices_several_operands_and_what_names_no_result_are_left(equation):
    assert einsum(equation, operands_of(equation)) is NotImplemented
