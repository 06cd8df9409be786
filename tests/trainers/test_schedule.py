"""The learning rate: the same as PyTorch's own schedulers where they overlap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.trainers.schedule import SHAPES, learning_rate

PLAIN = {"peak": 0.3, "warmup": 0.0, "final": 0.0}


def torch_rates(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("cosine", lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)),
        ("linear", lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-12, 20)),
        ("constant", lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
    ],
)
def test_the_shape_is_that_of_torch(kind, make):
    ours = [learning_rate(step, 20, kind=kind, **PLAIN) for step in range(20)]
    assert ours == pytest.approx(torch_rates(make, 20), abs=1e-9)


@given(
    steps=st.integers(1, 300),
    kind=st.sampled_from(sorted(SHAPES)),
    warmup=st.floats(0, 1),
    final=st.floats(0, 1),
)
def test_it_rises_once_to_the_peak_and_never_again(steps, kind, warmup, final):
    shape = {"peak": 2.0, "kind": kind, "warmup": warmup, "final": final}
    rates = [learning_rate(step, steps, **shape) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) == 2.0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) >= 0
