"""Sums in another order are sums of the same terms, and part by what correct implementations part by."""

import pytest
import torch
from torch import nn

from weighbridge.converters.common.dtypes import unit_roundoff
from weighbridge.parity.reference.orders import OtherOrder
from weighbridge.parity.reference.several import other_rounding


def in_order(seed, run, concern=lambda: True):
    with torch.no_grad(), OtherOrder(torch.Generator().manual_seed(seed), concern):
        return run()


SUMS = {
    "product": lambda x: x @ x.mT,
    "einsum": lambda x: torch.einsum("bij,bkj->ik", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([1, 2], [1, 2])),
    "linear": lambda x: nn.functional.linear(x, x[0, :5], x[0, 0, :5]),
    "batches": lambda x: torch.baddbmm(x[:, :, :7], x, x.mT),
    "some": lambda x: x.sum((0, 2), keepdim=True),
    "last": lambda x: x.mean(-1),
    "all": lambda x: x.sum() + x.mean(),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_terms_are_added_in_another_order(name, dtype):
    x = torch.rand(3, 7, 90, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    once, exact = SUMS[name](x), SUMS[name](x.double())
    found = [in_order(seed, lambda: SUMS[name](x)) for seed in range(6)]
    off = torch.stack([((it.double() - exact).norm() / exact.norm()) for it in found])
    assert all((it.shape, it.dtype) == (once.shape, once.dtype) for it in found)
    assert 0 < off.max() < 30 * unit_roundoff(dtype)
    assert dtype != "float32" or len(off.unique()) > 1


def test_a_large_sum_is_added_in_groups():
    x = torch.rand(2, 50_000)
    exact = x.double() @ x.double().T
    found = in_order(0, lambda: x @ x.T)
    assert (found - exact).norm() / exact.norm() < 100 * unit_roundoff("float32")


def test_what_has_no_terms_is_as_it_was():
    empty = torch.zeros(2, 0)
    assert in_order(0, lambda: empty.sum(-1)).tolist() == [0.0, 0.0]
    assert in_order(0, lambda: torch.arange(4).sum()).item() == 6
    assert in_order(0, lambda: torch.ones(4).sum(dtype=torch.float64)).dtype == torch.float64


def test_sums_between_layers_are_added_again_and_those_inside_are_theirs():
    """A product of what a layer gave was nearly exact by chance, and a right ONNX model of it was rejected."""
    asked = []

    class Likeness(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(90, 90)

        def forward(self, x):
            y = self.layer(x)
            return y @ y.T

    module, x = Likeness(), torch.rand(2, 90)
    module.layer.register_forward_hook(lambda _, __, out: asked.append(out.detach()))
    with torch.no_grad(), other_rounding(module, "float32") as moved:
        once, runs = module(x), [moved(seed, lambda: module(x)) for seed in range(8)]
        assert torch.equal(module(x), once), "nothing stays moved"
    parted = max(float((it - once).norm() / once.norm()) for it in runs)
    assert 2 * unit_roundoff("float32") < parted < 30 * unit_roundoff("float32")
    assert all((it - asked[0]).abs().max() < 1e-6 for it in asked)
