"""Runs of a mixture of experts that round in other ways show how far correct runs lie apart."""

import numpy as np
import torch
from torch import nn

from weighbridge.converters.common.dtypes import unit_roundoff
from weighbridge.parity.check.distances import Distance
from weighbridge.parity.reference.routing import has_experts, other_rounding, worst_of


class Routed(nn.Module):
    """Two experts, of which a router that cannot decide takes one for each token."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(2, 2, bias=False)
        self.experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
        self.router.weight.data = torch.tensor([[1.0, 0.0], [1.0, 0.0]])

    def forward(self, x):
        chosen = self.router(x).argmax(-1, keepdim=True)
        return torch.where(chosen == 0, self.experts[0](x), self.experts[1](x))


def test_a_module_with_experts_is_known_by_their_name():
    assert has_experts(Routed())
    assert not has_experts(nn.Sequential(nn.Linear(2, 2)))


def test_every_choice_that_rounding_may_make_is_seen():
    module, x = Routed(), torch.ones(1, 2)
    seen = set()
    for seed in range(8):
        with torch.no_grad(), other_rounding(module, "bfloat16", seed):
            seen.add(bool((module(x) - module.experts[0](x)).abs().max() < 0.02))
    assert seen == {True, False}
    with torch.no_grad():
        assert torch.equal(module(x), module.experts[0](x)), "nothing stays moved"


def test_outputs_are_moved_by_one_rounding_at_most():
    module = nn.Linear(3, 4)
    x = torch.randn(50, 3)
    with torch.no_grad(), other_rounding(module, "float16", 0):
        moved = module(x)
    quotient = (moved / module(x) - 1).abs().detach().numpy()
    assert 0.5 * unit_roundoff("float16") < quotient.max() <= 1.001 * unit_roundoff("float16")


def test_the_worst_of_several_runs_counts():
    rows = [{"y": Distance(float(whole), 1.0)} for whole in np.arange(3)]
    assert worst_of(rows)["y"].whole == 2.0
