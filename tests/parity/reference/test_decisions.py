"""What equal whole numbers show: from which fault on others would have been chosen."""

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.models import Port, Signature
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.decisions import decided
from weighbridge.parity.reference.reference import module_outputs

TOKENS = ("batch", "sequence", 16)
SIGNATURE = Signature((Port("x", "float32", TOKENS, ""),), (Port("y", "int64", TOKENS, ""),))


class Chooses(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.layer, self.choose = nn.Linear(16, 16), choose

    def forward(self, x):
        return self.choose(self.layer(x))


def found(choose, rows=40):
    torch.manual_seed(0)
    module = Chooses(choose)
    probe = Probe(
        "p", {"x": np.random.default_rng(0).normal(size=(1, rows, 16)).astype("float32")}, ()
    )
    wanted = module_outputs(module, SIGNATURE, [probe], "float32")
    return decided(module, SIGNATURE, [probe], wanted).get("p", {}).get("y")


def test_more_decisions_show_smaller_faults():
    few, many = (found(lambda y: y.argsort(-1), rows) for rows in (4, 400))
    assert 0 < many.size < few.size <= 1
    assert (few.numbers, few.by_rounding) == (64, 0)


@pytest.mark.parametrize(
    "choose", [lambda y: (y > -1e9).long(), lambda y: (y.mean() > 1e9).long(), lambda y: y.argmax()]
)
def test_constants_and_single_choices_show_nothing(choose):
    assert found(choose).size == 0


def test_what_rounding_chooses_shows_nothing():
    def choose(y):
        return torch.stack([y.sum(-1), y.flip(-1).sum(-1)], -1).argmax(-1)

    tied = found(choose)
    assert tied.by_rounding > tied.numbers // 2


def test_others_beside_tell_more():
    assert found(lambda y: y) is None
