"""A mixture of experts is known as one."""

from torch import nn

from weighbridge.parity.reference.routing import has_experts


def test_a_module_with_experts_is_known_by_their_name():
    assert has_experts(nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 2)])}))
    assert not has_experts(nn.Sequential(nn.Linear(2, 2)))
