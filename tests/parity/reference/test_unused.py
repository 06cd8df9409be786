"""Experts that give back what they get need no weights; every other expert does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weighbridge.parity.reference.unused import passing_on


class Experts(nn.Module):
    """Three experts with two stacks of weights, of which the last three have but one."""

    def __init__(self, passes_on):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.ones(n, 4, 4)) for n in (6, 3))
        self.passes_on = passes_on

    def forward(self, hidden_states, top_k_index, top_k_weights):
        parts = [self.one(hidden_states, int(it)) for it in top_k_index[0]]
        shared = zip(parts, top_k_weights.unbind(-1), strict=True)
        return sum(part * share[:, None] for part, share in shared)

    def one(self, tokens, number):
        if number < len(self.down):
            return tokens @ self.up[number].T @ self.down[number].T
        return tokens if number in self.passes_on else tokens @ self.up[number].T


PLACES = {
    f"layer.experts.{number}.{part}_proj.weight": f"layer.{part}"
    for part, count in {"up": 6, "down": 3}.items()
    for number in range(count)
}


@pytest.mark.parametrize("passes_on", [(), (4,), (3, 4, 5)])
def test_only_experts_whose_output_depends_on_no_weight_may_be_left_out(passes_on):
    module = nn.ModuleDict({"layer": Experts(passes_on)})
    found = {*passing_on(module, PLACES)}
    assert found == {f"layer.experts.{it}.up_proj.weight" for it in passes_on}


def test_experts_that_cannot_be_run_alone_need_their_weights():
    experts = Experts(())
    experts.one = lambda tokens, number: tokens @ experts.down[number]  # has no such row
    assert [*passing_on(nn.ModuleDict({"layer": experts}), PLACES)] == []
